// A backend's work, with the group whose statistics it counts in.
#pragma once

#include <optional>

#include "base/clock.h"
#include "comm/state.h"

namespace fsdp::detail {

// Holding the group's state keeps the backend alive until its last work is waited for.
class TimedWork {
 public:
  TimedWork(std::shared_ptr<CommState> state, WorkPtr work, const char* op)
      : state_(std::move(state)), work_(std::move(work)), op_(op) {}

  // Without a timeout: uses the group's, and the host does not wait for a device.
  void wait(std::optional<Milliseconds> timeout) {
    state_->check_process(op_, "");
    const auto start = Clock::now();
    const WaitScope scope(state_->info);
    state_->explained(
        [&] { work_->wait(timeout.value_or(state_->info.options.timeout), timeout.has_value()); });
    state_->stats.add(op_, 0, 0, seconds_since(start));
  }
  // For a rank that fails by itself. Returns true if nothing is left to wait for; waits for others only
  // briefly. See Work and Note [Forked children].
  bool foreign() const { return !state_->owner.is_this(); }  // a forked child's
  bool drop() { return foreign() || work_->drop(); }

 private:
  std::shared_ptr<CommState> state_;
  WorkPtr work_;
  const char* op_;
};

}  // namespace fsdp::detail
