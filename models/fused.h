// Chains of elementwise operators that the models use, each as one kernel where there is one.
//
// Kernels are for CUDA tensors in fp32, fp16 and bf16. They round where the chain of operators would, so
// their bits are those of the chain, in forward and in backward; they move a fraction of its bytes, and keep
// less for backward. Everything else, and gradients of gradients, takes the chain.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::models {

// silu(gate) * up. Backward needs the two inputs, no more.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);

// x * cos + [-high, low] * sin, where low and high are the halves of the last dimension. `x` [batch, head,
// time, head_dim]; cos and sin [time, head_dim], which need no gradient.
at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Whether kernels are used, by default yes. For comparisons.
void use_kernels(bool yes);

}  // namespace fsdp::models
