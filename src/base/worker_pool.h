// Threads for work on host memory. (at::parallel_for uses one thread if LibTorch has no OpenMP, and a second
// OpenMP beside LibTorch's own would compete with it for processors.)
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

  // Calls task(i) for every i < tasks on at most `threads` threads, this one included; returns when all are
  // done. Tasks must not throw. While another thread's tasks run, this thread does all its own tasks alone.
  void run(size_t tasks, int threads, const std::function<void(size_t)>& task);

  // Pins the workers, now and later, to these processors, and limits their number to that of processors.
  void stay_on(const std::vector<int>& processors);

  // The pool of this process: a forked child has none of its parent's threads.
  static WorkerPool& shared();

 private:
  // The tasks of the current run; workers take them in order.
  struct Job {
    const std::function<void(size_t)>* task = nullptr;
    size_t tasks = 0;
    size_t next = 0;
    int wanted = 0;  // workers that may still join
    int working = 0;
  };

  void work();
  // Runs tasks until none is left. The lock is held on entry and on return.
  void take_part(std::unique_lock<std::mutex>& lock);

  OwningProcess owner_;
  std::mutex one_run_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable begun_, done_;
  std::vector<std::thread> threads_;
  std::vector<int> processors_;  // none: all
  Job job_;
  bool ends_ = false;
};

}  // namespace fsdp::detail
