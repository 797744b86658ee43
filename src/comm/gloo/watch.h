// Waits for gloo's messages, and finds the rank at fault if one does not come.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "comm/backend.h"

namespace fsdp::detail {

// An operation of the group, as errors and other ranks see it.
struct GlooOperation {
  OpInfo info;
  uint64_t sequence = 0;
  std::string signature;  // peers must have issued the same; empty for a message between two ranks
  Clock::time_point issued_at = Clock::now();

  bool is_message() const { return signature.empty(); }
};

// A message on its way from or to the group rank `peer`.
struct GlooMessage {
  c10::intrusive_ptr<::c10d::Work> work;
  int peer = 0;
};

struct GlooFault {
  CommFault kind = CommFault::backend;
  AbortCause cause = AbortCause::caller;  // if `kind` is aborted
  int culprit = -1;                       // group rank; -1: unknown
  std::string reason;

  std::string to_text() const;
  static GlooFault from_text(const std::string& text);
};

constexpr const char* kClosedCommunicator = "it closed its communicator while others still needed it";

// Note [Faults between hosts]
// A rank that waits sees only its own connections. If the process of a peer ends, its connections close. A
// rank that leaves because of a fault closes its connections too, and must not be blamed for it. So
// - a rank that finds a fault writes it into the store, under one key, before it throws; the first one
// counts;
// - a rank that leaves without a fault writes that;
// - a rank whose connection to a peer closes looks there first, and blames the peer only if nothing is there;
// - a rank that waits looks there five times a second, and so hears of faults that its connections do not
// show.
//
// A rank that has waited for kTellAfter writes the operation that it waits in. If another rank waits in
// another operation with the same number, that is a mismatch. At the deadline, the rank that is not waiting
// in this operation is late.
//
// A thread does this, because a store whose host cannot be reached does not answer for minutes. If it does
// not come back in time, the waiting rank ends its wait without it.
class GlooWatch {
 public:
  explicit GlooWatch(const GroupInfo& info);
  // Tells the others that this rank leaves.
  ~GlooWatch();
  GlooWatch(const GlooWatch&) = delete;
  GlooWatch& operator=(const GlooWatch&) = delete;

  // Throws CommError once the group has failed.
  void wait(const GlooMessage& message, const GlooOperation& operation, Clock::time_point deadline);
  void throw_if_faulted(const GlooOperation& operation) const;
  bool faulted() const;
  // gloo refused a message to or from `peer`. Throws.
  [[noreturn]] void fail(int peer, const GlooOperation& operation, const std::string& words);

  void abort(AbortCause cause, const std::string& reason);
  AbortCause abort_cause() const;
  // The reason if this rank leaves; "" clears it. See Comm::leaving.
  void leaving(const std::string& why);

 private:
  class Loop;

  [[noreturn]] void throw_fault(const GlooOperation& operation) const;

  GroupInfo info_;
  bool left_note_ = false;  // the store has this rank's reason to leave
  std::shared_ptr<Loop>
      loop_;  // shared with its thread, which may be stuck in the store when this one leaves
};

}  // namespace fsdp::detail
