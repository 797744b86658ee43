// What a Comm handle points to: the backend, and what has been done with it.
#pragma once

#include <map>
#include <mutex>
#include <string>

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

struct CommState {
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
      const bool by_order =
          fault == CommFault::aborted && error.details().reason.find(OrderLog::kDiffer) != std::string::npos;
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
