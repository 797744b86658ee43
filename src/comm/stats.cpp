#include "comm/state.h"

namespace fsdp::detail {

void StatsTable::add(const char* op, int64_t count, int64_t bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  OpStats& row = rows_[op];
  row.op = op;
  row.count += count;
  row.bytes += bytes;
  row.seconds += seconds;
}

std::vector<OpStats> StatsTable::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<OpStats> all;
  for (const auto& [name, row] : rows_) all.push_back(row);
  return all;
}

}  // namespace fsdp::detail
