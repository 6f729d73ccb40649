// the barrier of the kernels' threads alone: threads.py builds it
#include "threads.h"

extern "C" void barriers(int64_t threads, int64_t count) {
  rnnorm::run_team(threads, [&](auto& team, int64_t) {
    for (int64_t k = 0; k < count; ++k) team.barrier();
  });
}
