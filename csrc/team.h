// threads that wait for each other
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "layer.h"

namespace rnnorm {

// the barrier spins for a moment, then sleeps. OpenMP's barrier spins for milliseconds at every
// step, on cores that other processes need
class RNNORM_API Team {
 public:
  explicit Team(int64_t size);
  ~Team();
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  // sets the number of threads that really run; each thread calls it before it waits
  void resize(int64_t size) { size_.store(size, std::memory_order_relaxed); }
  void barrier();
  // counts the calling thread in at a barrier without waiting there; true for the last to come
  bool arrive();

 private:
  std::atomic<int64_t> size_, waiting_{0}, round_{0};
  const int64_t patience_;
  std::mutex mutex_;
  std::condition_variable next_round_;
};

}  // namespace rnnorm
