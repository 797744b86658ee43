// BatchNorm with statistics over all ranks, for models that are not written for it.
#pragma once

#include <fsdp/comm.h>

#include <ATen/core/stack.h>

#include <cstdint>
#include <string_view>

namespace fsdp::detail {

// Note [BatchNorm over all ranks]
// The operator of a BatchNorm layer has the layer's weight among its inputs, so the observer sees it, in
// forward and in backward, whatever module or script it came from. Instead of LibTorch's kernel we then
// compute the same from sums over all ranks. Layers without parameters are not seen.
enum class BatchNormOp : uint8_t { none, native, cudnn, native_backward, cudnn_backward };

BatchNormOp batch_norm_op(std::string_view name);
// Does what `op` says with its arguments on the stack, over the ranks of `comm`. False, with nothing done:
// the layer does not train, so LibTorch's own kernel is right.
bool run_batch_norm(BatchNormOp op, torch::jit::Stack& stack, Comm& comm);

}  // namespace fsdp::detail
