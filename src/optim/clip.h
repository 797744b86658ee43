// The factor by which clipping by norm multiplies gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::detail {

// A scalar where `total_norm` is; at most 1.
at::Tensor clip_factor(const at::Tensor& total_norm, double max_norm);

}  // namespace fsdp::detail
