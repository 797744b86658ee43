// Rectangles of tensors: their intersections, and copies between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "layout/boxes.h"

namespace fsdp::detail {

// The part that two boxes share; none: no part.
std::optional<Box> intersection(const Box& a, const Box& b);

// Calls `take` for boxes that make up `part`, each of
// which is contiguous in the row-major box `whole`.
void each_run(const Box& part, const Box& whole, const std::function<void(const Box&)>& take);

// Number of elements of the row-major box `whole` before `start`.
int64_t offset_in(const Box& whole, const std::vector<int64_t>& start);

// The part `part` of `view`, where `view` has the elements of the box `of`.
at::Tensor cut(at::Tensor view, const Box& of, const Box& part);

}  // namespace fsdp::detail
