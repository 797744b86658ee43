// Sees every operator that has a watched tensor among its inputs, and gathers the units that it reads.
//
// Note [Watched tensors]
// C++ modules have no hooks, so we watch the tensors. A module's parameters, the shards and the gradient
// shards carry a dispatch key that LibTorch keeps for libraries outside of it; views and saved tensors
// inherit it. The dispatcher then calls the observer, after autograd and before the kernel, for every
// operator with such an input, in forward and backward, on every thread; other operators do not pass here and
// cost nothing. Exceptions of the observer reach the caller as they are.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace fsdp::detail {

constexpr c10::DispatchKey kWatchedKey = c10::DispatchKey::Fake;

// A tensor over `storage` whose operators are observed; otherwise like `like`.
at::Tensor watched_over(const c10::Storage& storage, const at::Tensor& like);
// A tensor over the memory of `tensor` whose operators are observed.
at::Tensor watched(const at::Tensor& tensor);

}  // namespace fsdp::detail
