// a pool of threads, for compilers without OpenMP
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "threads.h"

namespace rnnorm {
namespace {

class Pool {
 public:
  using Task = void (*)(void*, Team&, int64_t);

  explicit Pool(int64_t threads) : team_(threads) {
    for (int64_t rank = 1; rank < threads; ++rank)
      others_.emplace_back([this, rank] {
        for (;;) {
          team_.barrier();
          if (!task_) return;
          task_(body_, team_, rank);
          team_.barrier();
        }
      });
  }
  ~Pool() {
    task_ = nullptr;
    team_.barrier();
    for (std::thread& other : others_) other.join();
  }
  int64_t size() const { return team_.size(); }
  void run(Task task, void* body) {
    task_ = task;
    body_ = body;
    team_.barrier();
    task(body, team_, 0);
    team_.barrier();
  }

 private:
  Team team_;
  Task task_ = nullptr;
  void* body_ = nullptr;
  std::vector<std::thread> others_;
};

// the pool of a calling thread
class Own {
 public:
  Pool& of(int64_t threads) {
    leave_behind();
    if (!pool_ || pool_->size() != threads) {
      pool_.reset();
      pool_ = std::make_unique<Pool>(threads);
      process_ = getpid();
    }
    return *pool_;
  }
  ~Own() { leave_behind(); }

 private:
  // after a fork the child has the parent's pool, but none of its threads to wait for
  void leave_behind() {
    if (process_ != getpid()) (void)pool_.release();
  }
  std::unique_ptr<Pool> pool_;
  pid_t process_ = 0;
};

thread_local Own own;

}  // namespace
}  // namespace rnnorm

extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body) {
  if (threads > 1) return rnnorm::own.of(threads).run(task, body);
  rnnorm::Team team(1);
  task(body, team, 0);
}
