// a pool of threads, for compilers without OpenMP
#include <unistd.h>

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "threads.h"

namespace rnnorm {
namespace {

class Pool {
 public:
  using Task = void (*)(void*, Team&, int64_t);

  // fewer threads where the system refuses some
  explicit Pool(int64_t threads) : asked_(threads), team_(threads) {
    const std::lock_guard<std::mutex> lock(counting_);
    try {
      others_.reserve(size_t(threads));
      for (int64_t rank = 1; rank < threads; ++rank)
        others_.emplace_back([this, rank] { work(rank); });
    } catch (const std::exception&) {
      team_.resize(int64_t(others_.size()) + 1);
    }
  }
  ~Pool() {
    task_ = nullptr;
    team_.barrier();
    for (std::thread& other : others_) other.join();
  }
  int64_t asked() const { return asked_; }
  void run(Task task, void* body) {
    task_ = task;
    body_ = body;
    team_.barrier();
    task(body, team_, 0);
    team_.barrier();
  }

 private:
  void work(int64_t rank) {
    // a barrier knows how many there are
    counting_.lock();
    counting_.unlock();
    for (;;) {
      team_.barrier();
      if (!task_) return;
      task_(body_, team_, rank);
      team_.barrier();
    }
  }

  const int64_t asked_;
  Team team_;
  std::mutex counting_;
  Task task_ = nullptr;
  void* body_ = nullptr;
  std::vector<std::thread> others_;
};

// the pool of a calling thread
class Own {
 public:
  Pool& of(int64_t threads) {
    leave_behind();
    if (!pool_ || pool_->asked() != threads) {
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
