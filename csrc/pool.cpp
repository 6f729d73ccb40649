#include "pool.h"

#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

namespace rnnorm {
namespace {

// about as long as going to sleep takes; no use where threads outnumber cores
int64_t patience(int64_t threads) {
  static const int64_t cores = std::thread::hardware_concurrency();
  return threads <= cores ? 2000 : 0;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

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

Team::Team(int64_t size) : size_(size), patience_(patience(size)) {}

void Team::barrier() {
  if (size_ == 1) return;
  const int64_t round = round_.load(std::memory_order_relaxed);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    waiting_.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      round_.store(round + 1, std::memory_order_release);
    }
    next_round_.notify_all();
    return;
  }
  for (int64_t k = 0; k < patience_; ++k) {
    if (round_.load(std::memory_order_acquire) != round) return;
    pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  next_round_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != round; });
}

}  // namespace rnnorm

extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body) {
  if (threads > 1) return rnnorm::own.of(threads).run(task, body);
  rnnorm::Team team(1);
  task(body, team, 0);
}
