// What an optimizer keeps of a parameter, by name: for those that count it, and those that save it.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace fsdp::detail {

using NamedTensor = std::pair<std::string, at::Tensor>;

// The tensors of one parameter's state: of Adam, AdamW, SGD, RMSprop, Adagrad and fsdp::AdamW. Names are
// PyTorch's. Empty for other optimizers.
std::vector<NamedTensor> state_tensors(const torch::optim::OptimizerParamState& state);
// Of all parameters.
int64_t state_bytes(const torch::optim::Optimizer& optimizer);

}  // namespace fsdp::detail
