// a team of threads with a barrier: GNU OpenMP's pool, or standard threads for ThreadSanitizer
#pragma once
#include <cstdint>

#ifdef RNNORM_STANDARD_THREADS
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace rnnorm {
namespace {

#ifdef RNNORM_STANDARD_THREADS

class Team {
 public:
  explicit Team(int64_t size) : size_(size) {}
  int64_t size() const { return size_; }
  void barrier() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = round_;
    if (++waiting_ == size_) {
      waiting_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  const int64_t size_;
  int64_t waiting_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable all_here_;
};

template <class Body>
void run_team(int64_t threads, Body body) {
  Team team(threads);
  std::vector<std::thread> others;
  for (int64_t rank = 1; rank < threads; ++rank)
    others.emplace_back([&, rank] { body(team, rank); });
  body(team, 0);
  for (auto& other : others) other.join();
}

#else

class Team {
 public:
  explicit Team(int64_t size) : size_(size) {}
  int64_t size() const { return size_; }
  void barrier() {
    if (size_ > 1) {
#pragma omp barrier
    }
  }

 private:
  const int64_t size_;
};

template <class Body>
void run_team(int64_t threads, Body body) {
  if (threads == 1) {
    // no parallel region at all: safe in a child after fork
    Team team(1);
    body(team, 0);
    return;
  }
#pragma omp parallel num_threads(int(threads))
  {
    Team team(omp_get_num_threads());
    body(team, omp_get_thread_num());
  }
}

#endif

}  // namespace
}  // namespace rnnorm
