#include "base/promises.h"

#include <algorithm>
#include <utility>

namespace fsdp::detail {

Promises::~Promises() {
  if (!thread_.joinable()) return;
  if (!owner_.is_this()) {
    thread_.detach();  // a forked child has no such thread
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  added_.notify_all();
  thread_.join();
}

void Promises::add(Key key, std::function<void()> work) {
  std::unique_lock lock(mutex_);
  queue_.push_back({.key = key, .work = std::move(work)});
  ++open_[key];
  if (!thread_.joinable()) thread_ = std::thread([this] { this->work(); });
  added_.notify_all();
  drop_kept(lock);
}

void Promises::wait(Key key) {
  std::unique_lock lock(mutex_);
  hurry(key);
  kept_one_.wait(lock, [&] { return !open_.contains(key); });
  const std::exception_ptr error = std::exchange(error_, nullptr);
  drop_kept(lock);
  if (error) std::rethrow_exception(error);
}

void Promises::hurry(Key key) {
  std::stable_partition(queue_.begin(), queue_.end(), [&](const Promise& one) { return one.key == key; });
}

void Promises::wait_all() {
  std::unique_lock lock(mutex_);
  kept_one_.wait(lock, [&] { return open_.empty(); });
  drop_kept(lock);
}

void Promises::drop_kept(std::unique_lock<std::mutex>& lock) {
  const std::vector<Promise> kept = std::exchange(kept_, {});
  lock.unlock();
}

void Promises::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    added_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Promise next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      next.work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error_) error_ = error;
    const auto open = open_.find(next.key);
    if (--open->second == 0) open_.erase(open);
    kept_.push_back(std::move(next));
    kept_one_.notify_all();
  }
}

}  // namespace fsdp::detail
