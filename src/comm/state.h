// The state behind a Comm handle: the backend, statistics and the log of operations.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/owning_process.h"
#include "comm/backend.h"
#include "comm/heartbeat/heartbeat.h"
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
// User code may fork, for example a data loader. The child has a copy of every handle and drops it at some
// point. The group still belongs to the parent: no action of the child may count as done by this rank. So in
// any process other than the one that made the group, release() and claim() do nothing, a dropped Work is not
// waited for, every other call is refused, and the backend is never destroyed: the threads it would join do
// not exist there.
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
  OrderLog order;  // for backends that do not compare operations themselves

  bool keeps_order() const { return info.size > 1 && !backend->compares_operations(); }
  // Runs `fn`; if it fails because ranks issued different operations, the error says which.
  template <class Fn>
  auto explained(Fn fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (const CommError& error) {
      const CommFault fault = error.details().fault;
      const bool by_order = fault == CommFault::aborted && backend->abort_cause() == AbortCause::order;
      if (keeps_order() && (fault == CommFault::backend || fault == CommFault::timeout || by_order))
        order.throw_difference(info);
      CommError::Details details = error.details();
      if (details.activity.empty()) details.activity = info.activity->get();
      complete_fault(info, details);
      throw CommError(std::move(details));
    }
  }
  int splits = 0;
};

// The backend for a group; `automatic` is resolved here. Collective.
BackendPtr make_backend(const GroupInfo& info);

}  // namespace fsdp::detail
