// The thread of GlooWatch. See Note [Faults between hosts].
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/process_watch.h"
#include "comm/gloo/watch.h"

namespace fsdp::detail {

// Keys of the group's store.
constexpr const char* kGlooFault = "gloo/fault";
inline std::string gloo_left_key(int rank) { return "gloo/left/" + std::to_string(rank); }
inline std::string gloo_wait_key(int rank) { return "gloo/waits/" + std::to_string(rank); }

class GlooWatch::Loop {
 public:
  explicit Loop(const GroupInfo& info);

  // The wait that is in progress, if any. One at a time.
  struct Wait {
    c10::intrusive_ptr<::c10d::Work> work;
    int peer = 0;
    GlooOperation operation;
    Clock::time_point begun_at;
    Clock::time_point deadline;
    std::string closed;  // gloo's words once the connection has closed
  };

  void begin(Wait wait);
  void end();
  // Waits for the fault behind gloo's error; blames the peer if the store does not answer.
  void find_fault(const std::string& words);
  // The wait is past its deadline, and the thread is stuck.
  void report_late_alone();

  void abort(AbortCause cause, const std::string& reason);
  std::optional<GlooFault> fault() const;

  void run();
  // True once the thread has ended, which it does soon after this call unless it is stuck in the store.
  bool stop();

 private:
  using Store = c10::intrusive_ptr<::c10d::Store>;

  void look(const Wait& wait);
  void look_at_store(const Wait& wait);
  void find_closed(const Wait& wait);
  void find_late(const Wait& wait);
  void tell(const Wait& wait);
  void untell();
  std::optional<GlooFault> find_mismatch(const Wait& wait);
  bool on_this_host(int rank) const;
  bool is_dead(int rank) const;
  GlooFault store_lost(const Wait& wait) const;
  // Writes the fault into the store; the first one there becomes this rank's.
  void report(const GlooFault& fault);
  void settle(const GlooFault& fault);
  void publish();
  static std::string read(::c10d::Store& store, const std::string& key);
  void write(const std::string& key, const std::string& value);
  Store& store();
  GlooFault late(const Wait& wait, int culprit, const std::string& silent) const;

  GroupInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;    // the thread
  std::condition_variable answer_;  // those who wait for it
  std::optional<Wait> wait_;
  std::optional<GlooFault> fault_;
  std::optional<GlooFault> unpublished_;
  bool stopping_ = false;
  bool ended_ = false;
  // Of the thread alone.
  Store store_;
  bool told_ = false;
  Clock::time_point looked_at_{};
  Clock::time_point compared_at_{};
};

}  // namespace fsdp::detail
