// What a group was asked to do, for backends that cannot tell when ranks were asked for different things.
//
// Note [Order of operations]
// Backends on shared memory compare every operation before they move a byte. NCCL and c10d move bytes between
// whatever calls meet: two gathers of equal size meet silently though one rank meant another unit. For those
// a digest of all operations so far is summed over the ranks from time to time (Comm::check_order). Where
// digests differ, the group is aborted. A rank whose operation fails in a group like this reads from the
// store what the others were asked for last, and names the first difference.
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
  void add(const char* op, std::string_view label, size_t bytes);
  int64_t digest() const { return static_cast<int64_t>(digest_); }

  // `sum`: of the digests of all ranks as they are now; what the current stream holds has made it.
  void ask(const GroupInfo& info, const at::Tensor& sum);
  // Compares the answers that are there; `wait`: all of them. False: ranks differ.
  bool look(const GroupInfo& info, bool wait);
  // Lets the others read what this rank was asked for.
  void share(const GroupInfo& info) const;
  // Does so, and reads what the others were asked for. Throws CommError with the first difference, if one is
  // found soon.
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
  };

  static bool answered(const Asked& asked, bool wait);
  std::string last_entries() const;
  std::optional<CommError::Details> find_difference(const GroupInfo& info) const;

  static constexpr size_t kKept = 512;
  static constexpr size_t kAhead = 2;  // questions a host may run ahead of its device
  uint64_t digest_ = 0;
  uint64_t count_ = 0;
  std::deque<Entry> last_;
  std::deque<Asked> asked_;
};

}  // namespace fsdp::detail
