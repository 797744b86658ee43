// Chains of elementwise operators that the models use, each as one kernel if there is one.
//
// Kernels are for CUDA tensors in fp32, fp16 and bf16. They round where the chain of operators would, so
// their bits are those of the chain, in forward and in backward. They move a fraction of its bytes and keep
// less for backward. All other tensors, and gradients of gradients, take the chain.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::models {

// silu(gate) * up. Backward needs only the two inputs.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);

// x * cos + [-high, low] * sin, where low and high are the halves of the last dimension. `x` [batch, head,
// time, head_dim]; cos and sin [time, head_dim], which need no gradient.
at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Turns the kernels on or off, for comparisons. Default: on.
void use_kernels(bool yes);

}  // namespace fsdp::models
