// a task of a team of threads: those of GNU OpenMP, or of a pool of standard threads
#pragma once
#include "team.h"

#ifdef RNNORM_STANDARD_THREADS

// calls the task once for each rank; each calling thread keeps a pool of its own
extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body);

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
