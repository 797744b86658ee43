// What a Comm handle points to: the backend, and what has been done with it.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/owning_process.h"
#include "comm/backend.h"
#include "comm/order_log.h"

namespace fsdp::detail {

// Totals per operation. The lock lets another thread read them during a run.
class StatsTable {
 public:
  void add(const char* op, int64_t count, int64_t bytes, double seconds);
  std::vector<OpStats> rows() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, OpStats, std::less<>> rows_;
};

// Note [Forked children]
// User code may fork, for a data loader say. The child has a copy of every handle, and drops it some day. The
// group is still the parent's: nothing that the child does may count as done by this rank. So in another
// process than the one that made the group, release() and claim() do nothing, a dropped Work is not waited
// for, every other call is refused, and the backend is never destroyed: the threads it would join are not
// there.
struct CommState {
  CommState() = default;
  CommState(const CommState&) = delete;
  CommState& operator=(const CommState&) = delete;
  ~CommState() {
    if (!owner.is_this()) (void)std::make_unique<BackendPtr>(std::move(backend)).release();
  }

  // Throws c10::Error in a forked child.
  void check_process(const char* op, std::string_view label) const;

  OwningProcess owner;
  GroupInfo info;
  BackendPtr backend;
  StatsTable stats;
  OrderLog order;  // of backends that do not compare operations themselves

  bool keeps_order() const { return info.size > 1 && !backend->compares_operations(); }
  // Runs `fn`; where it fails because ranks went different ways, the error says how.
  template <class Fn>
  auto explained(Fn fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (const CommError& error) {
      const CommFault fault = error.details().fault;
      const bool by_order = fault == CommFault::aborted && backend->abort_cause() == AbortCause::order;
      if (keeps_order() && (fault == CommFault::backend || fault == CommFault::timeout || by_order))
        order.throw_difference(info);
      throw;
    }
  }
  int splits = 0;
};

// The backend for a group; `automatic` is resolved here. Collective.
BackendPtr make_backend(const GroupInfo& info);

}  // namespace fsdp::detail
