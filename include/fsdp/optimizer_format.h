// How checkpoints see the state of an optimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace fsdp {

// For optimizers that are not LibTorch's: give one to RunState::optimizer_format. Adam, AdamW, SGD, RMSprop,
// Adagrad and fsdp::AdamW are known. No member may be empty.
struct OptimizerFormat {
  using State = torch::optim::OptimizerParamState;
  using Options = torch::optim::OptimizerOptions;
  using Tensors = std::map<std::string, at::Tensor>;
  using Numbers = std::map<std::string, double>;

  std::string type;  // its name in the checkpoint: another type is refused
  // What is kept of one parameter, by name: tensors with as many elements as the parameter, in its order.
  std::function<Tensors(const State&)> tensors;
  std::function<int64_t(const State&)> steps;  // done so far with that parameter
  // A state that holds these.
  std::function<std::unique_ptr<State>(const Tensors& tensors, int64_t steps)> make;
  // Of a parameter group.
  std::function<Numbers(const Options&)> options;
  std::function<void(Options&, const Numbers&)> set_options;
};

}  // namespace fsdp
