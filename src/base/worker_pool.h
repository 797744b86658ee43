// Threads for work on host memory. (at::parallel_for runs in one thread where OpenMP is not compiled in, and
// a second OpenMP beside LibTorch's own would fight it for processors.)
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/owning_process.h"

namespace fsdp::detail {

class WorkerPool {
 public:
  WorkerPool() = default;
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls task(i) for every i < tasks, on at most `threads` threads, of which this is one, and returns when
  // all are done. Tasks do not throw. While another thread's tasks run, this thread does its own alone.
  void run(size_t tasks, int threads, const std::function<void(size_t)>& task);

  // Its threads, now and later, run on these processors alone, and are no more than they.
  void stay_on(const std::vector<int>& processors);

  // Of this process: a forked child has none of its parent's threads.
  static WorkerPool& shared();

 private:
  // What workers take tasks of, in order.
  struct Job {
    const std::function<void(size_t)>* task = nullptr;
    size_t tasks = 0;
    size_t next = 0;
    int wanted = 0;  // workers that may still join
    int working = 0;
  };

  void work();
  // Does tasks until none is left. The lock is held when it is called and when it returns.
  void take_part(std::unique_lock<std::mutex>& lock);

  OwningProcess owner_;
  std::mutex one_run_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable begun_, done_;
  std::vector<std::thread> threads_;
  std::vector<int> processors_;  // none: all
  Job job_;
  bool ends_ = false;
};

}  // namespace fsdp::detail
