// The kernels behind models/fused.h, as functions of tensors. A build without CUDA has none of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace fsdp::models::kernels {

// True if there is a kernel for tensors such as these.
bool can_gate(const at::Tensor& a, const at::Tensor& b);
bool can_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Need tensors for which there is a kernel. They run on the current stream.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                      const at::Tensor& up);  // gradients of gate and up
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back);

}  // namespace fsdp::models::kernels
