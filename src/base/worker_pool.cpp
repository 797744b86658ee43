#include "base/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace fsdp::detail {

namespace {

void place(std::thread& thread, const std::vector<int>& processors) {
  if (processors.empty()) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int processor : processors) CPU_SET(processor, &mask);
  ::pthread_setaffinity_np(thread.native_handle(), sizeof mask, &mask);
}

}  // namespace

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool& WorkerPool::shared() {
  // Never destroyed: objects that end late may still use it. A forked child makes its own.
  static std::mutex mutex;
  static WorkerPool* pool = nullptr;
  const std::lock_guard lock(mutex);
  if (pool == nullptr || !pool->owner_.is_this()) pool = new WorkerPool;
  return *pool;
}

void WorkerPool::stay_on(const std::vector<int>& processors) {
  const std::lock_guard lock(mutex_);
  processors_ = processors;
  for (std::thread& thread : threads_) place(thread, processors_);
}

void WorkerPool::take_part(std::unique_lock<std::mutex>& lock) {
  while (job_.next < job_.tasks) {
    const size_t mine = job_.next++;
    const auto& task = *job_.task;
    lock.unlock();
    task(mine);
    lock.lock();
  }
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return ends_ || job_.wanted > 0; });
    if (ends_) return;
    --job_.wanted;
    ++job_.working;
    take_part(lock);
    if (--job_.working == 0) done_.notify_all();
  }
}

void WorkerPool::run(size_t tasks, int threads, const std::function<void(size_t)>& task) {
  const std::unique_lock alone(one_run_, std::try_to_lock);
  if (!alone.owns_lock() || threads <= 1 || tasks <= 1) {
    for (size_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  std::unique_lock lock(mutex_);
  if (!processors_.empty()) threads = std::min(threads, static_cast<int>(processors_.size()));
  while (threads_.size() + 1 < static_cast<size_t>(threads)) {
    threads_.emplace_back([this] { work(); });
    place(threads_.back(), processors_);
  }
  job_ = {.task = &task, .tasks = tasks, .next = 0, .wanted = threads - 1, .working = 0};
  begun_.notify_all();
  take_part(lock);
  job_.wanted = 0;  // threads that have not joined yet need not
  done_.wait(lock, [&] { return job_.working == 0; });
}

}  // namespace fsdp::detail
