#include "optim/state_tensors.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

namespace fsdp::detail {

namespace {

using torch::optim::OptimizerParamState;

// Null where `state` is another optimizer's.
template <class State>
const State* as(const OptimizerParamState& state) {
  return dynamic_cast<const State*>(&state);
}

std::vector<NamedTensor> all_of(const OptimizerParamState& state) {
  using namespace torch::optim;
  const auto adam = [](const auto& s) -> std::vector<NamedTensor> {
    return {{"exp_avg", s.exp_avg()}, {"exp_avg_sq", s.exp_avg_sq()}, {"max_exp_avg_sq", s.max_exp_avg_sq()}};
  };
  if (const auto* s = as<AdamWParamState>(state)) return adam(*s);
  if (const auto* s = as<AdamParamState>(state)) return adam(*s);
  if (const auto* s = as<SGDParamState>(state)) return {{"momentum_buffer", s->momentum_buffer()}};
  if (const auto* s = as<AdagradParamState>(state)) return {{"sum", s->sum()}};
  if (const auto* s = as<RMSpropParamState>(state))
    return {{"square_avg", s->square_avg()},
            {"momentum_buffer", s->momentum_buffer()},
            {"grad_avg", s->grad_avg()}};
  return {};
}

}  // namespace

std::vector<NamedTensor> state_tensors(const OptimizerParamState& state) {
  std::vector<NamedTensor> tensors = all_of(state);
  std::erase_if(tensors, [](const NamedTensor& one) { return !one.second.defined(); });
  return tensors;
}

int64_t state_bytes(const torch::optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [param, state] : optimizer.state())
    for (const auto& [name, tensor] : state_tensors(*state)) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace fsdp::detail
