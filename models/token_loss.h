// The loss of a language model without its logits in fp32.
#pragma once

#include <torch/types.h>

namespace fsdp::models {

// The mean cross entropy, in fp32, of `logits` [n, vocab] and `targets` [n]; -100 is left out. For logits in
// bf16 whose gradient is wanted: their memory becomes that of the gradient, which forward computes a few rows
// at a time. Where at::cross_entropy_loss works in six times the logits, this needs no more than they have.
// Throws c10::Error for logits of another dtype, and when it is differentiated twice.
torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace fsdp::models
