// Shared memory without a name: a memfd. The kernel frees it with its last user, even after a crash.
#pragma once

#include "comm/shared/segment.h"

namespace fsdp::detail {

// Tickets are "pid:fd:inode"; a peer opens /proc/<pid>/fd/<fd>, so ranks need the same user and pid
// namespace.
class MemfdSource final : public SegmentSource {
 public:
  Export create(size_t bytes) override;
  SegmentPtr attach(const std::string& ticket, size_t bytes) override;
};

}  // namespace fsdp::detail
