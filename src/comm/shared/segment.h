// Memory that all ranks of a group see: a memfd between processes, the heap between threads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace fsdp::detail {

// A mapped block of zeroed memory. Nothing outlives its users: the kernel frees a memfd with its last
// mapping.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual char* data() const = 0;
  virtual size_t size() const = 0;
};
using SegmentPtr = std::shared_ptr<Segment>;

// The means by which ranks share a segment: the leader creates and exports it, the others attach by the
// exported ticket, and the leader keeps the export alive until all have attached.
class SegmentSource {
 public:
  struct Export {
    SegmentPtr segment;
    std::string ticket;          // plain text, valid in any rank of the group
    std::shared_ptr<void> keep;  // drop it when everyone has attached
  };

  virtual ~SegmentSource() = default;
  virtual Export create(size_t bytes) = 0;
  virtual SegmentPtr attach(const std::string& ticket, size_t bytes) = 0;
};

}  // namespace fsdp::detail
