#include "threads.h"

#include <thread>

namespace rnnorm {
namespace {

// about as long as going to sleep takes; no use where threads outnumber cores
int64_t patience(int64_t threads) {
  static const int64_t cores = std::thread::hardware_concurrency();
  return threads <= cores ? 2000 : 0;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

Team::Team(int64_t size) : size_(size), patience_(patience(size)) {}

Team::~Team() = default;

bool Team::arrive() {
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 != size()) return false;
  waiting_.store(0, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    round_.store(round_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  next_round_.notify_all();
  return true;
}

void Team::barrier() {
  if (size() == 1) return;
  const int64_t round = round_.load(std::memory_order_relaxed);
  if (arrive()) return;
  for (int64_t k = 0; k < patience_; ++k) {
    if (round_.load(std::memory_order_acquire) != round) return;
    pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  next_round_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != round; });
}

}  // namespace rnnorm

#ifndef RNNORM_STANDARD_THREADS
extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body) {
  rnnorm::run_team(threads, [&](rnnorm::Team& team, int64_t rank) { task(body, team, rank); });
}
#endif
