// An optimizer that updates shards in host memory while the backward goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace fsdp::detail {

struct UnitRegion;

// Note [Steps in backward]
// A region whose gradient is complete, and which the plan does not gather again in this cycle, is updated
// beside the rest of the backward; others are when it ends, those whose gradients came in other parts than
// planned among them. Slices get no .grad(). What is read of a region after its update would be of the next
// step: that is refused, and so is a gradient that comes later.
class BackwardStepper {
 public:
  virtual ~BackwardStepper() = default;
  // `gradient` [shard_numel] of the region is in host memory when `arrived` has been reached.
  virtual void update(UnitRegion& region, const at::Tensor& gradient,
                      std::shared_ptr<c10::Event> arrived) = 0;
};

}  // namespace fsdp::detail
