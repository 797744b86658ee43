// OptimizerFormat: how checkpoints save and load the state of an optimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace fsdp {

// For optimizers that are not LibTorch's: pass one as RunState::optimizer_format. Adam, AdamW, SGD, RMSprop,
// Adagrad and fsdp::AdamW are built in. No member may be empty.
struct OptimizerFormat {
  using State = torch::optim::OptimizerParamState;
  using Options = torch::optim::OptimizerOptions;
  using Tensors = std::map<std::string, at::Tensor>;
  using Numbers = std::map<std::string, double>;

  std::string type;  // name of the optimizer in the checkpoint; load() refuses another type
  // The state of one parameter, by name: tensors with as many elements as the parameter, in its order.
  std::function<Tensors(const State&)> tensors;
  std::function<int64_t(const State&)> steps;  // number of steps taken with that parameter
  // Makes a state that holds these.
  std::function<std::unique_ptr<State>(const Tensors& tensors, int64_t steps)> make;
  // Read and write the options of a parameter group.
  std::function<Numbers(const Options&)> options;
  std::function<void(Options&, const Numbers&)> set_options;
};

}  // namespace fsdp
