// how a pass is run: its memory, its threads, its cell and type
#pragma once
#include "layout.h"
#include "subnormals.h"
#include "threads.h"

// scratch of the calling thread, kept for the next call; null if memory ran out
extern "C" void* rnnorm_scratch(int64_t bytes);

namespace rnnorm {
namespace {

// runs a pass in scratch memory: 1 if there is none, 2 if an exchange has failed
template <class Pass>
int run_pass(const rnnorm_layer& a) {
  Pass pass(a);
  Arena sizes(nullptr);
  pass.take(sizes);
  void* block = rnnorm_scratch(sizes.used());
  if (!block) return 1;
  Arena arena(block);
  pass.take(arena);
  pass.prepare_offsets();
  pass.prefer_huge_pages();
  run_team(a.threads, [&](auto& team, int64_t rank) {
    const NoSubnormals here;
    pass.run_thread(team, rank);
  });
  return pass.failed ? 2 : 0;
}

// runs Direction<Cell, T> for the layer's cell and type
template <template <class, class> class Direction>
int run_layer(const rnnorm_layer& a) {
  switch (a.cell * 2 + (a.is_double ? 1 : 0)) {
    case RNNORM_LSTM * 2: return run_pass<Direction<Lstm, float>>(a);
    case RNNORM_LSTM * 2 + 1: return run_pass<Direction<Lstm, double>>(a);
    case RNNORM_GRU * 2: return run_pass<Direction<Gru<false>, float>>(a);
    case RNNORM_GRU * 2 + 1: return run_pass<Direction<Gru<false>, double>>(a);
    case RNNORM_GRU_BOTH * 2: return run_pass<Direction<Gru<true>, float>>(a);
    case RNNORM_GRU_BOTH * 2 + 1: return run_pass<Direction<Gru<true>, double>>(a);
    case RNNORM_LIGRU * 2: return run_pass<Direction<LiGru, float>>(a);
    case RNNORM_LIGRU * 2 + 1: return run_pass<Direction<LiGru, double>>(a);
    case RNNORM_RNN_TANH * 2: return run_pass<Direction<Rnn<false>, float>>(a);
    case RNNORM_RNN_TANH * 2 + 1: return run_pass<Direction<Rnn<false>, double>>(a);
    case RNNORM_RNN_RELU * 2: return run_pass<Direction<Rnn<true>, float>>(a);
    case RNNORM_RNN_RELU * 2 + 1: return run_pass<Direction<Rnn<true>, double>>(a);
    case RNNORM_INDRNN_TANH * 2: return run_pass<Direction<Rnn<false, true>, float>>(a);
    case RNNORM_INDRNN_TANH * 2 + 1: return run_pass<Direction<Rnn<false, true>, double>>(a);
    case RNNORM_INDRNN_RELU * 2: return run_pass<Direction<Rnn<true, true>, float>>(a);
    default: return run_pass<Direction<Rnn<true, true>, double>>(a);
  }
}

}  // namespace
}  // namespace rnnorm
