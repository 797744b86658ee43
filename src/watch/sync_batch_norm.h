// BatchNorm with statistics over all ranks, for models that are not written for it.
#pragma once

#include <ATen/core/stack.h>

namespace fsdp::detail {

class WatchedUnit;

// Note [BatchNorm over all ranks]
// The operator of a BatchNorm layer has the layer's weight among its inputs, so the observer sees it, in
// forward and in backward, whatever module or script it came from. These functions then replace LibTorch's
// kernel and compute the same from sums over all ranks. Layers without parameters are not seen. See
// OpOverride: returns false if the unit has no batch_norm_ranks(), or the layer does not train.
bool native_batch_norm(torch::jit::Stack& stack, WatchedUnit& unit);
bool cudnn_batch_norm(torch::jit::Stack& stack, WatchedUnit& unit);
bool native_batch_norm_backward(torch::jit::Stack& stack, WatchedUnit& unit);
bool cudnn_batch_norm_backward(torch::jit::Stack& stack, WatchedUnit& unit);

}  // namespace fsdp::detail
