// BackwardStepper: an optimizer that updates shards in host memory while the backward goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace fsdp::detail {

struct UnitRegion;

// Note [Steps in backward]
// A region whose gradient is complete, and which the plan does not gather again in this cycle, is updated
// while the backward goes on. Other regions are updated when it ends, also those whose gradients came in
// other parts than planned. Slices get no .grad(). A read of a region after its update would see values of
// the next step, so it is refused, and so is a gradient that arrives later.
class BackwardStepper {
 public:
  virtual ~BackwardStepper() = default;
  // `gradient` [shard_numel] of the region is in host memory once `arrived` is reached.
  virtual void update(UnitRegion& region, const at::Tensor& gradient,
                      std::shared_ptr<c10::Event> arrived) = 0;
};

}  // namespace fsdp::detail
