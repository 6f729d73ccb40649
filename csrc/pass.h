// how a pass is run: its memory, its threads, its cell and type
#pragma once
#include "layout.h"
#include "subnormals.h"
#include "threads.h"

#ifdef RNNORM_OWN
extern "C" RNNORM_API int RNNORM_FORWARD(const rnnorm_layer*);
extern "C" RNNORM_API int RNNORM_BACKWARD(const rnnorm_layer*);
#endif

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
    release_tiles();
  });
  return pass.failed ? 2 : 0;
}

// runs Direction<Cell, T> for the layer's numbers
template <template <class, class> class Direction, class Cell>
int run_cell(const rnnorm_layer& a) {
#ifndef RNNORM_PAIRS
  if (a.numbers == RNNORM_DOUBLE) return run_pass<Direction<Cell, double>>(a);
#endif
  return run_pass<Direction<Cell, float>>(a);
}

template <template <class, class> class Direction>
int run_layer(const rnnorm_layer& a) {
#ifdef RNNORM_OWN
  return run_pass<Direction<Own, RNNORM_OWN>>(a);
#else
  switch (a.cell) {
    case RNNORM_LSTM: return run_cell<Direction, Lstm>(a);
    case RNNORM_GRU: return run_cell<Direction, Gru>(a);
    case RNNORM_GRU_BOTH: return run_cell<Direction, GruBoth>(a);
    case RNNORM_LIGRU: return run_cell<Direction, LiGru>(a);
    case RNNORM_RNN_TANH: return run_cell<Direction, RnnTanh>(a);
    case RNNORM_RNN_RELU: return run_cell<Direction, RnnRelu>(a);
    case RNNORM_INDRNN_TANH: return run_cell<Direction, IndRnnTanh>(a);
    default: return run_cell<Direction, IndRnnRelu>(a);
  }
#endif
}

}  // namespace
}  // namespace rnnorm
