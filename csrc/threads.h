// a team of threads with a barrier: GNU OpenMP's pool, or one of standard threads
#pragma once
#include <cstdint>

#ifdef RNNORM_STANDARD_THREADS
#include "pool.h"
#else
#include <omp.h>
#endif

namespace rnnorm {
namespace {

#ifdef RNNORM_STANDARD_THREADS

template <class Body>
void run_team(int64_t threads, Body body) {
  const auto task = [](void* body, Team& team, int64_t rank) {
    (*static_cast<Body*>(body))(team, rank);
  };
  rnnorm_run_team(threads, task, &body);
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
