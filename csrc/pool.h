// a team of standard threads, for compilers without OpenMP
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace rnnorm {

// threads that wait for each other: a moment at work, then asleep
class Team {
 public:
  explicit Team(int64_t size);
  int64_t size() const { return size_; }
  void barrier();

 private:
  const int64_t size_, patience_;
  std::atomic<int64_t> waiting_{0}, round_{0};
  std::mutex mutex_;
  std::condition_variable next_round_;
};

}  // namespace rnnorm

// calls the task once for each rank; each calling thread keeps a pool of its own
extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body);
