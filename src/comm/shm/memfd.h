// Shared memory without a name: a memfd, which the kernel frees with its last user however that ends.
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
