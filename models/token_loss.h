// The loss of a language model, computed without logits in fp32.
#pragma once

#include <torch/types.h>

namespace fsdp::models {

// The mean cross entropy, in fp32, of `logits` [n, vocab] and `targets` [n]; -100 is ignored. For bf16 logits
// that need a gradient: the gradient takes over their memory, and forward computes it a few rows at a time.
// at::cross_entropy_loss needs six times the memory of the logits; this needs no more than they have. Throws
// c10::Error for logits of another dtype, and when it is differentiated twice.
torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace fsdp::models
