// Views of flat buffers, made without an operator where that matters.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::detail {

// The real numbers of a flat tensor, as communicated: complex numbers as pairs.
at::Tensor as_reals(const at::Tensor& flat);

// A tensor over `flat`'s storage, made without an operator.
at::Tensor raw_view(const at::Tensor& flat, int64_t offset, at::IntArrayRef shape, at::IntArrayRef strides);

}  // namespace fsdp::detail
