// The seam for modes in which a step is more than one backward.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// What the runtime asks where the sums of several backwards make up the gradients of a step.
class StepMode {
 public:
  using Units = std::vector<std::shared_ptr<Unit>>;
  virtual ~StepMode() = default;

  // Before a forward of the training.
  virtual void before_forward() = 0;
  // `sum` of this backward's gradients of a region, or of some of them.
  virtual void add(const UnitRegion& region, const at::Tensor& sum) = 0;
  // Every gradient of the backward was added. True: it was the last of the step, and `take` was given the
  // total of every region (undefined: no rank had any) and what to multiply it by.
  using Take = std::function<void(UnitRegion&, const at::Tensor& sum, double scale)>;
  virtual bool end_backward(const Units& units, const Take& take) = 0;
  // A backward failed: what it left is dropped, and it is to be done again.
  virtual void drop_backward() = 0;
  // Gradients so far are dropped; the step starts again.
  virtual void restart(const Units& units) = 0;
  // Throws c10::Error where parameters may not be written now.
  virtual void check_write() const = 0;

  // Of sums that wait for other backwards of the step.
  virtual int64_t held_bytes() const = 0;

  // Sum over all gradients of |x|^p, or the largest |x| for infinity. Collective.
  virtual double norm_sum(const Units& units, Mesh& mesh, double p) const = 0;
  // Of all parameters. Collective.
  virtual uint64_t hash(const Units& units, Mesh& mesh) const = 0;

  int64_t step = 0;
};

}  // namespace fsdp::detail
