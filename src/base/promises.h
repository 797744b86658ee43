// Promises: work on a thread of its own; callers that need a result wait for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/owning_process.h"

namespace fsdp::detail {

class Promises {
 public:
  using Key = const void*;

  Promises() = default;
  ~Promises();
  Promises(const Promises&) = delete;
  Promises& operator=(const Promises&) = delete;

  // Runs `work` after all earlier work for `key`. The next wait() for `key` rethrows its exception. Objects
  // that `work` holds are destroyed by a later call, on the caller's thread.
  void add(Key key, std::function<void()> work);
  // As add(), but runs before work for other keys, as soon as `ready` returns true; the one added last runs
  // first. If nothing is ready, the work added first starts anyway and waits itself.
  void add_first(Key key, std::function<void()> work, std::function<bool()> ready);
  // Waits until all work for `key` is done; it runs next. Rethrows the first error of that work.
  void wait(Key key);
  // Waits for all work. Throws nothing: errors are kept for wait(key).
  void wait_all();
  // A counter: each call returns the next number.
  int64_t number() { return next_number_++; }

 private:
  struct Promise {
    Key key;
    std::function<void()> work;
    std::function<bool()> ready;  // none: always ready
  };

  void start(std::unique_lock<std::mutex>& lock, Key key);
  void work();
  Promise take();
  void hurry(Key key);
  // Releases the lock.
  void drop_kept(std::unique_lock<std::mutex>& lock);

  OwningProcess owner_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable added_, kept_one_;
  std::deque<Promise> queue_;  // front runs next
  std::map<Key, int> open_;    // work of each key that is not done
  std::vector<Promise> kept_;  // done, but their objects are not destroyed yet
  std::thread thread_;
  bool ends_ = false;
  std::map<Key, std::exception_ptr> errors_;  // the first error of each key that no wait() has thrown
  int64_t next_number_ = 1;                   // used by the caller's thread only
};

}  // namespace fsdp::detail
