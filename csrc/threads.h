// a task of a team of threads: those of GNU OpenMP, or of a pool of standard threads
#pragma once
#include "team.h"

// a cell that is compiled at its first use has the threads of the library that the package brings
#if defined(RNNORM_STANDARD_THREADS) || defined(RNNORM_OWN)
#define RNNORM_THREADS_ELSEWHERE
#else
#include <omp.h>
#endif

namespace rnnorm {
namespace {

#ifdef RNNORM_THREADS_ELSEWHERE

template <class Body>
void run_team(int64_t threads, Body body) {
  const auto task = [](void* body, Team& team, int64_t rank) {
    (*static_cast<Body*>(body))(team, rank);
  };
  rnnorm_run_team(threads, task, &body);
}

#else

template <class Body>
void run_team(int64_t threads, Body body) {
  Team team(threads);
  if (threads == 1) {
    // no parallel region at all: safe in a child after fork
    body(team, 0);
    return;
  }
#pragma omp parallel num_threads(int(threads))
  {
    team.resize(omp_get_num_threads());
    body(team, omp_get_thread_num());
  }
}

#endif

}  // namespace
}  // namespace rnnorm
