// Watches collectives on a device: finds dead peers, late operations and NCCL's own errors, and ends the
// group.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/process_watch.h"
#include "comm/backend.h"
#include "comm/heartbeat/heartbeat.h"

namespace fsdp::detail {

// An operation enqueued on a device.
struct NcclOperation {
  OpInfo info;
  uint64_t sequence = 0;
  std::string signature;  // peers must have issued the same
  std::shared_ptr<c10::Event>
      done;  // null while it is being enqueued, which may have to wait for peers as well
  Clock::time_point issued_at = Clock::now();
};

// Note [Watchdog]
// A stream cannot time out: a collective whose peer is gone spins on the device for ever, and so does
// everything queued behind it. So a watchdog thread looks every few milliseconds at the peers' processes
// (those of this host), at the oldest operation not yet done, at NCCL's asynchronous error and at the group's
// "fault" key in the store (faults seen on other hosts). On a fault it tells the others through the store and
// calls `on_fault`, which aborts the communicators: kernels return, and every later call of the group throws.
// Results computed after the fault are garbage and never reach a caller through this library, because wait()
// of any later work throws.
class Watchdog {
 public:
  struct Hooks {
    std::function<std::string()> async_error;
    std::function<void()> on_fault;
  };

  Watchdog(const GroupInfo& info, Hooks hooks);
  ~Watchdog();

  // An operation is begun before it is enqueued and, once it is, given the event that marks its end.
  void begin(const NcclOperation& operation);
  void enqueued(uint64_t sequence, std::shared_ptr<c10::Event> done);
  // The fault as seen by this operation; nothing while all is well.
  std::optional<CommError> fault(const NcclOperation& operation) const;
  bool faulted() const;
  void report(CommFault kind, int culprit, const std::string& reason);
  void abort(AbortCause cause, const std::string& reason);
  // The cause if the group was aborted, here or by a rank that wrote so into the store.
  AbortCause abort_cause() const;
  // `late` was not done in time: finds the culprit through the store, and reports it.
  void report_late(const NcclOperation& late);
  // A call to the device threw: it does nothing more, and this rank is the cause.
  void report_device_error(const std::exception& error);
  // NCCL reported `what`: names the dead peer behind it, if there is one.
  void report_failure(const std::string& what);

 private:
  struct Found {
    CommFault kind = CommFault::backend;
    AbortCause cause = AbortCause::caller;  // if `kind` is aborted
    int culprit = -1;
    std::string reason;
  };

  void report(const Found& found);
  // The text in the store, for the other ranks.
  static std::string to_text(const Found& found);
  static Found from_text(const std::string& text);
  void loop();
  void look(bool at_store);
  void drop_finished();
  void show_wait();
  void look_for_dead();
  bool report_dead();
  void look_for_late();
  void look_at_store();

  GroupInfo info_;
  Hooks hooks_;
  ProcessWatch watch_;
  std::vector<int> watched_;  // group ranks, in the order of watch_
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<NcclOperation> queue_;
  std::optional<Found> found_;
  bool stopping_ = false;
  // The thread's own: the oldest operation in flight, since when it is the oldest, and whether it is shown.
  std::optional<uint64_t> oldest_;
  Clock::time_point oldest_since_;
  std::unique_ptr<WaitScope> wait_;
  std::thread thread_;
};

}  // namespace fsdp::detail
