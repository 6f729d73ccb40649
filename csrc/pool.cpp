// a pool of threads, for compilers without OpenMP
#ifndef _WIN32
#include <unistd.h>
#endif

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "per_thread.h"
#include "threads.h"

#ifdef _WIN32
// of ntdll
extern "C" __declspec(dllimport) unsigned char __stdcall RtlDllShutdownInProgress();
#endif

namespace rnnorm {
namespace {

class Pool {
 public:
  using Task = void (*)(void*, Team&, int64_t);

  explicit Pool(int64_t threads) : asked_(threads), team_(threads) {}
  // fewer threads where the system refuses some. Each of them keeps the pool, which may end first
  static std::shared_ptr<Pool> start(int64_t threads) {
    const auto pool = std::make_shared<Pool>(threads);
    const std::lock_guard<std::mutex> lock(pool->counting_);
    try {
      pool->others_.reserve(size_t(threads));
      for (int64_t rank = 1; rank < threads; ++rank) {
        pool->others_.emplace_back([pool, rank] { pool->work(rank); });
#ifdef _WIN32
        // the caller may end the pool while it ends itself, and Windows ends one thread at a time.
        // MinGW's library loses count of a thread that is detached while it ends
        pool->others_.back().detach();
#endif
      }
    } catch (const std::exception&) {
      pool->team_.resize(int64_t(pool->others_.size()) + 1);
    }
    return pool;
  }
  int64_t asked() const { return asked_; }
  void run(Task task, void* body) {
    task_ = task;
    body_ = body;
    team_.barrier();
    task(body, team_, 0);
    team_.barrier();
  }
  void end() {
    task_ = nullptr;
    team_.arrive();
    // the library must not be unloaded while they run
    for (std::thread& other : others_)
      if (other.joinable()) other.join();
  }

 private:
  void work(int64_t rank) {
    // wait until the barrier has been told how many threads there are
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
    if (!pool_ || lost() || pool_->asked() != threads) {
      end();
      pool_ = Pool::start(threads);
#ifndef _WIN32
      process_ = getpid();
#endif
    }
    return *pool_;
  }
  ~Own() { end(); }

 private:
  void end() {
    // lost threads keep their pool for ever
    if (pool_ && !lost()) pool_->end();
    pool_.reset();
  }
#ifdef _WIN32
  // a process that ends kills all threads but one, which then runs the destructors
  bool lost() const { return RtlDllShutdownInProgress(); }
#else
  // after a fork the child has the parent's pool, but none of its threads
  bool lost() const { return process_ != getpid(); }
  pid_t process_ = 0;
#endif
  std::shared_ptr<Pool> pool_;
};

PerThread<Own> own;

}  // namespace
}  // namespace rnnorm

extern "C" void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body) {
  if (threads > 1) return rnnorm::own().of(threads).run(task, body);
  rnnorm::Team team(1);
  task(body, team, 0);
}
