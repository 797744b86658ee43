// Rectangles of tensors: what they share, and copies between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "layout/boxes.h"

namespace fsdp::detail {

// What two boxes share.
std::optional<Box> intersection(const Box& a, const Box& b);

// Calls `take` for the boxes of which `part` consists and which are one run each of the row-major box
// `whole`.
void each_run(const Box& part, const Box& whole, const std::function<void(const Box&)>& take);

// How many elements of the row-major box `whole` lie before `start`.
int64_t offset_in(const Box& whole, const std::vector<int64_t>& start);

// The part of `view`, which is the box `of`, that is the box `part`.
at::Tensor cut(at::Tensor view, const Box& of, const Box& part);

}  // namespace fsdp::detail
