#include "base/promises.h"

#include <algorithm>
#include <set>
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
  queue_.push_back({.key = key, .work = std::move(work), .ready = {}});
  start(lock, key);
}

void Promises::add_first(Key key, std::function<void()> work, std::function<bool()> ready) {
  std::unique_lock lock(mutex_);
  const auto same =
      std::find_if(queue_.rbegin(), queue_.rend(), [&](const auto& one) { return one.key == key; });
  const auto place = same == queue_.rend() ? queue_.begin() : same.base();  // behind work of the same key
  queue_.insert(place, {.key = key, .work = std::move(work), .ready = std::move(ready)});
  start(lock, key);
}

void Promises::start(std::unique_lock<std::mutex>& lock, Key key) {
  ++open_[key];
  if (!thread_.joinable()) thread_ = std::thread([this] { this->work(); });
  added_.notify_all();
  drop_kept(lock);
}

void Promises::wait(Key key) {
  std::unique_lock lock(mutex_);
  hurry(key);
  kept_one_.wait(lock, [&] { return !open_.contains(key); });
  const auto failed = errors_.extract(key);
  drop_kept(lock);
  if (failed) std::rethrow_exception(failed.mapped());
}

void Promises::hurry(Key key) {
  const auto rest =
      std::stable_partition(queue_.begin(), queue_.end(), [&](const Promise& one) { return one.key == key; });
  std::for_each(queue_.begin(), rest, [](Promise& one) { one.ready = {}; });
}

Promises::Promise Promises::take() {
  const auto ready = [](const Promise& one) {
    try {
      return !one.ready || one.ready();
    } catch (...) {
      return true;  // the work meets the same error, and wait() rethrows it
    }
  };
  std::set<Key> passed;  // later work of the same key stays later
  auto next = std::find_if(queue_.begin(), queue_.end(),
                           [&](const Promise& one) { return passed.insert(one.key).second && ready(one); });
  if (next == queue_.end())
    next = std::find_if(queue_.begin(), queue_.end(),
                        [&](const Promise& one) { return one.key == queue_.back().key; });
  Promise taken = std::move(*next);
  queue_.erase(next);
  return taken;
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
    Promise next = take();
    lock.unlock();
    std::exception_ptr error;
    try {
      next.work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) errors_.emplace(next.key, error);
    const auto open = open_.find(next.key);
    if (--open->second == 0) open_.erase(open);
    kept_.push_back(std::move(next));
    kept_one_.notify_all();
  }
}

}  // namespace fsdp::detail
