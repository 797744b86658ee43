// What LibTorch's optimizers and ours keep of a parameter, by PyTorch's names.
#pragma once

#include <fsdp/optimizer_format.h>

namespace fsdp::detail {

// Null for an optimizer we do not know.
const OptimizerFormat* format_of(const torch::optim::Optimizer& optimizer);

// Bytes of all its states; 0 for an optimizer we do not know.
int64_t state_bytes(const torch::optim::Optimizer& optimizer);

}  // namespace fsdp::detail
