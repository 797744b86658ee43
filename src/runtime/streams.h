// StreamSet: streams that used some memory, so that another one can be ordered behind them.
//
// Note [Streams]
// The runtime issues its work on whatever stream the model runs on, and that stream may change inside a
// model. A gather overwrites memory that other streams may still read, and a reduce reads memory that they
// may still write: the stream that issues it first waits for all streams that took part. With one stream, the
// usual case, nothing is recorded and nothing waits.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include "runtime/policy.h"

namespace fsdp::detail {

class StreamSet {
 public:
  explicit StreamSet(c10::Device device) : device_(device), used_(policy_of(device).has_streams) {}

  // Adds the current stream. Returns true if it is new here.
  bool join();
  // Makes the current stream wait for the others' work so far.
  void wait_for_others() const;
  // Makes the others wait for the current stream's work so far, which reads their memory.
  void hold_others() const;
  void clear() { streams_.clear(); }

 private:
  template <class Fn>
  void for_others(Fn fn) const;

  c10::Device device_;
  bool used_;
  c10::SmallVector<c10::Stream, 2> streams_;
};

}  // namespace fsdp::detail
