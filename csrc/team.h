// threads that wait for each other
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace rnnorm {

// a barrier keeps a thread a moment at work, then asleep. OpenMP's own keeps it at work for
// milliseconds: at every step, where other processes want the core of whom it waits for
class Team {
 public:
  explicit Team(int64_t size);
  ~Team();
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  // as many threads as there are if not all came; each says so before it waits
  void resize(int64_t size) { size_.store(size, std::memory_order_relaxed); }
  void barrier();

 private:
  std::atomic<int64_t> size_, waiting_{0}, round_{0};
  const int64_t patience_;
  std::mutex mutex_;
  std::condition_variable next_round_;
};

}  // namespace rnnorm
