// Work that runs on a thread of its own, and is waited for by whoever needs what it makes.
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

  // `work` is done after all that was promised for `key` before. What it throws is thrown by the next wait()
  // for `key`. What it holds is dropped by a later call, on the thread of the caller.
  void add(Key key, std::function<void()> work);
  // As add(), but done before what was promised for other keys, as soon as it is ready; the last comes first.
  // When nothing is ready, what was added first is begun all the same, and waits for itself.
  void add_first(Key key, std::function<void()> work, std::function<bool()> ready);
  // Returns when everything promised for `key` is done, which is done next. Throws the first error of that.
  void wait(Key key);
  // Throws nothing: errors stay with their keys.
  void wait_all();
  // One more every time.
  int64_t number() { return next_number_++; }

 private:
  struct Promise {
    Key key;
    std::function<void()> work;
    std::function<bool()> ready;  // none: it is
  };

  void start(std::unique_lock<std::mutex>& lock, Key key);
  void work();
  Promise take();
  void hurry(Key key);
  // Ends the lock.
  void drop_kept(std::unique_lock<std::mutex>& lock);

  OwningProcess owner_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable added_, kept_one_;
  std::deque<Promise> queue_;  // the next is the first
  std::map<Key, int> open_;    // promises of each key that are not kept
  std::vector<Promise> kept_;  // what they held is not dropped yet
  std::thread thread_;
  bool ends_ = false;
  std::map<Key, std::exception_ptr> errors_;  // the first of each key that nobody was told of
  int64_t next_number_ = 1;                   // of the caller's thread
};

}  // namespace fsdp::detail
