// StepMode: the interface of modes in which a step has more than one backward.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// Called by the runtime if the sums of several backwards make up the gradients of a step.
class StepMode {
 public:
  using Units = std::vector<std::shared_ptr<Unit>>;
  virtual ~StepMode() = default;

  // A training forward is about to begin.
  virtual void before_forward() = 0;
  // Adds `sum`, of this backward's gradients of a region or of some of them.
  virtual void add(const UnitRegion& region, const at::Tensor& sum) = 0;
  // All gradients of the backward were added. Returns true if it was the last of the step; `take` was then
  // called for every region with its total (undefined: no rank had a gradient) and the factor for it.
  using Take = std::function<void(UnitRegion&, const at::Tensor& sum, double scale)>;
  virtual bool end_backward(const Units& units, const Take& take) = 0;
  // A backward failed: drops its part of the sums; it is to be repeated.
  virtual void drop_backward() = 0;
  // Drops all gradients so far; the step starts again.
  virtual void restart(const Units& units) = 0;
  // Throws c10::Error if parameters must not be written now.
  virtual void check_write() const = 0;

  // Bytes of sums that wait for other backwards of the step.
  virtual int64_t held_bytes() const = 0;

  // Sum over all gradients of |x|^p, or the largest |x| for infinity. Collective.
  virtual double norm_sum(const Units& units, Mesh& mesh, double p) const = 0;
  // A hash of all parameters. Collective.
  virtual uint64_t hash(const Units& units, Mesh& mesh) const = 0;

  int64_t step = 0;
};

}  // namespace fsdp::detail
