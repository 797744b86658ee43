// The operations on memory from allocate(): all ranks make it together, gather into it, reduce from it,
// release and claim it. See Note [Shared slots].
#pragma once

#include <memory>
#include <string_view>

#include "comm/shared/extents.h"
#include "comm/shared/group.h"
#include "comm/shared/segment.h"

namespace fsdp::detail {

class Allocations {
 public:
  Allocations(SharedGroup& group, std::unique_ptr<SegmentSource> source);

  // As Comm's functions of the same names.
  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype);
  void release(const at::Tensor& slot);
  void claim(const at::Tensor& memory, std::string_view label);

  // Operations on tensors of any memory; those on allocated memory copy less.
  RoundOpPtr gather_op(const at::Tensor& slot, const at::Tensor& shard);
  RoundOpPtr reduce_op(const at::Tensor& output, const at::Tensor& input, double scale);

  // Throws c10::Error if `tensor` is memory for gathers, which `what` may not use.
  void refuse_slot(const at::Tensor& tensor, const char* what) const;
  // This rank leaves: counts it as finished with all memory that it holds.
  void release_all() { table_->release_all(); }

 private:
  void finish_use(Extent& extent);
  SegmentPtr share_segment(size_t bytes);
  SegmentSource::Export create_or_abort(size_t bytes);
  SegmentPtr attach_or_abort(const char* ticket, size_t bytes);

  SharedGroup& group_;
  std::unique_ptr<SegmentSource> source_;
  std::shared_ptr<AllocationTable> table_;  // shared with the tensors, which may outlive the group
  uint32_t count_ = 0;
};

}  // namespace fsdp::detail
