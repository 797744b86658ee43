// Streams that touched something, so that another can be ordered behind them.
//
// Note [Streams]
// The runtime issues its work on whatever stream the model runs on, and that may change inside a model. A
// gather overwrites what other streams may still read, and a reduce reads what they may still write: the
// stream that issues it first waits for all that took part. With one stream, which is the rule, nothing is
// recorded and nothing waits.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include "runtime/policy.h"

namespace fsdp::detail {

class StreamSet {
 public:
  explicit StreamSet(c10::Device device) : device_(device), used_(policy_of(device).has_streams) {}

  // The current stream takes part. True: it is new here.
  bool join();
  // The current stream waits for what the others hold now.
  void wait_for_others() const;
  // The others wait for what the current stream holds now: it reads memory that is theirs.
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
