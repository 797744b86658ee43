// OrderLog: the operations that a group issued, for backends that do not notice if ranks issue others.
//
// Note [Order of operations]
// Backends on shared memory compare every operation before they move a byte. NCCL and c10d move bytes between
// whatever calls meet: two gathers of equal size meet silently even if one rank meant another unit. For these
// backends a digest of all operations so far is summed over the ranks from time to time (Comm::check_order).
// If digests differ, the group is aborted. A rank whose operation fails in such a group reads from the store
// which operations the others issued last, and names the first difference.
#pragma once

#include <c10/core/Event.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "comm/backend.h"

namespace fsdp::detail {

class OrderLog {
 public:
  // `activity`: that of this rank, see Note [Activities].
  void add(const char* op, std::string_view label, size_t bytes, const std::string& activity = {});
  int64_t digest() const { return static_cast<int64_t>(digest_); }

  // `sum`: the sum of all ranks' digests as they are now, computed on the current stream.
  void ask(const GroupInfo& info, const at::Tensor& sum);
  // Compares the sums that are complete; `wait`: all of them. Returns false if ranks differ.
  bool look(const GroupInfo& info, bool wait);
  // Publishes this rank's last operations for the others.
  void share(const GroupInfo& info) const;
  // Publishes them, and reads the others' last operations. Throws CommError with the first difference if it
  // finds one soon.
  void throw_difference(const GroupInfo& info) const;

 private:
  struct Asked {
    uint64_t digest;
    at::Tensor sum;                    // [1] on the host, there when `copied`
    std::optional<c10::Event> copied;  // from a device
  };
  struct Entry {
    const char* op;
    std::string label;
    size_t bytes;
    std::string activity;
  };

  static bool answered(const Asked& asked, bool wait);
  std::string last_entries() const;
  std::optional<CommError::Details> find_difference(const GroupInfo& info) const;

  static constexpr size_t kKept = 512;
  static constexpr size_t kAhead = 2;  // sums a host may ask for ahead of its device
  uint64_t digest_ = 0;
  uint64_t count_ = 0;
  std::deque<Entry> last_;
  std::deque<Asked> asked_;
};

}  // namespace fsdp::detail
