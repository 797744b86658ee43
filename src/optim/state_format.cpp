#include "optim/state_format.h"

#include <fsdp/optim.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>

#include "optim/adamw_state.h"

namespace fsdp::detail {

namespace {

using namespace torch::optim;
using Tensors = OptimizerFormat::Tensors;
using Numbers = OptimizerFormat::Numbers;

Tensors defined(std::initializer_list<std::pair<const char*, at::Tensor>> all) {
  Tensors tensors;
  for (const auto& [name, tensor] : all)
    if (tensor.defined()) tensors.emplace(name, tensor);
  return tensors;
}

at::Tensor take(const Tensors& tensors, const char* name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

// Calls `set` with the value of `name`, if `numbers` has it.
template <class Set>
void take(const Numbers& numbers, const char* name, Set set) {
  if (const auto found = numbers.find(name); found != numbers.end()) set(found->second);
}

template <class State, class Options>
OptimizerFormat adam_format(const char* type) {
  OptimizerFormat format;
  format.type = type;
  format.tensors = [](const OptimizerParamState& state) {
    const auto& s = static_cast<const State&>(state);
    return defined(
        {{"exp_avg", s.exp_avg()}, {"exp_avg_sq", s.exp_avg_sq()}, {"max_exp_avg_sq", s.max_exp_avg_sq()}});
  };
  format.steps = [](const OptimizerParamState& state) { return static_cast<const State&>(state).step(); };
  format.make = [](const Tensors& tensors, int64_t steps) {
    auto state = std::make_unique<State>();
    state->step(steps);
    state->exp_avg(take(tensors, "exp_avg"));
    state->exp_avg_sq(take(tensors, "exp_avg_sq"));
    state->max_exp_avg_sq(take(tensors, "max_exp_avg_sq"));
    return state;
  };
  format.options = [](const OptimizerOptions& options) -> Numbers {
    const auto& o = static_cast<const Options&>(options);
    return {{"lr", o.lr()},   {"beta1", std::get<0>(o.betas())},  {"beta2", std::get<1>(o.betas())},
            {"eps", o.eps()}, {"weight_decay", o.weight_decay()}, {"amsgrad", o.amsgrad() ? 1.0 : 0.0}};
  };
  format.set_options = [](OptimizerOptions& options, const Numbers& numbers) {
    auto& o = static_cast<Options&>(options);
    take(numbers, "lr", [&](double x) { o.lr(x); });
    take(numbers, "beta1", [&](double x) { std::get<0>(o.betas()) = x; });
    take(numbers, "beta2", [&](double x) { std::get<1>(o.betas()) = x; });
    take(numbers, "eps", [&](double x) { o.eps(x); });
    take(numbers, "weight_decay", [&](double x) { o.weight_decay(x); });
    take(numbers, "amsgrad", [&](double x) { o.amsgrad(x != 0); });
  };
  return format;
}

OptimizerFormat sgd_format() {
  OptimizerFormat format;
  format.type = "SGD";
  format.tensors = [](const OptimizerParamState& state) {
    return defined({{"momentum_buffer", static_cast<const SGDParamState&>(state).momentum_buffer()}});
  };
  format.steps = [](const OptimizerParamState&) { return int64_t{0}; };  // it counts no steps
  format.make = [](const Tensors& tensors, int64_t) {
    auto state = std::make_unique<SGDParamState>();
    state->momentum_buffer(take(tensors, "momentum_buffer"));
    return state;
  };
  format.options = [](const OptimizerOptions& options) -> Numbers {
    const auto& o = static_cast<const SGDOptions&>(options);
    return {{"lr", o.lr()},
            {"momentum", o.momentum()},
            {"dampening", o.dampening()},
            {"weight_decay", o.weight_decay()},
            {"nesterov", o.nesterov() ? 1.0 : 0.0}};
  };
  format.set_options = [](OptimizerOptions& options, const Numbers& numbers) {
    auto& o = static_cast<SGDOptions&>(options);
    take(numbers, "lr", [&](double x) { o.lr(x); });
    take(numbers, "momentum", [&](double x) { o.momentum(x); });
    take(numbers, "dampening", [&](double x) { o.dampening(x); });
    take(numbers, "weight_decay", [&](double x) { o.weight_decay(x); });
    take(numbers, "nesterov", [&](double x) { o.nesterov(x != 0); });
  };
  return format;
}

OptimizerFormat rmsprop_format() {
  OptimizerFormat format;
  format.type = "RMSprop";
  format.tensors = [](const OptimizerParamState& state) {
    const auto& s = static_cast<const RMSpropParamState&>(state);
    return defined({{"square_avg", s.square_avg()},
                    {"momentum_buffer", s.momentum_buffer()},
                    {"grad_avg", s.grad_avg()}});
  };
  format.steps = [](const OptimizerParamState& state) {
    return static_cast<const RMSpropParamState&>(state).step();
  };
  format.make = [](const Tensors& tensors, int64_t steps) {
    auto state = std::make_unique<RMSpropParamState>();
    state->step(steps);
    state->square_avg(take(tensors, "square_avg"));
    state->momentum_buffer(take(tensors, "momentum_buffer"));
    state->grad_avg(take(tensors, "grad_avg"));
    return state;
  };
  format.options = [](const OptimizerOptions& options) -> Numbers {
    const auto& o = static_cast<const RMSpropOptions&>(options);
    return {{"lr", o.lr()},
            {"alpha", o.alpha()},
            {"eps", o.eps()},
            {"weight_decay", o.weight_decay()},
            {"momentum", o.momentum()},
            {"centered", o.centered() ? 1.0 : 0.0}};
  };
  format.set_options = [](OptimizerOptions& options, const Numbers& numbers) {
    auto& o = static_cast<RMSpropOptions&>(options);
    take(numbers, "lr", [&](double x) { o.lr(x); });
    take(numbers, "alpha", [&](double x) { o.alpha(x); });
    take(numbers, "eps", [&](double x) { o.eps(x); });
    take(numbers, "weight_decay", [&](double x) { o.weight_decay(x); });
    take(numbers, "momentum", [&](double x) { o.momentum(x); });
    take(numbers, "centered", [&](double x) { o.centered(x != 0); });
  };
  return format;
}

OptimizerFormat adagrad_format() {
  OptimizerFormat format;
  format.type = "Adagrad";
  format.tensors = [](const OptimizerParamState& state) {
    return defined({{"sum", static_cast<const AdagradParamState&>(state).sum()}});
  };
  format.steps = [](const OptimizerParamState& state) {
    return static_cast<const AdagradParamState&>(state).step();
  };
  format.make = [](const Tensors& tensors, int64_t steps) {
    auto state = std::make_unique<AdagradParamState>();
    state->step(steps);
    state->sum(take(tensors, "sum"));
    return state;
  };
  format.options = [](const OptimizerOptions& options) -> Numbers {
    const auto& o = static_cast<const AdagradOptions&>(options);
    return {{"lr", o.lr()},
            {"lr_decay", o.lr_decay()},
            {"weight_decay", o.weight_decay()},
            {"initial_accumulator_value", o.initial_accumulator_value()},
            {"eps", o.eps()}};
  };
  format.set_options = [](OptimizerOptions& options, const Numbers& numbers) {
    auto& o = static_cast<AdagradOptions&>(options);
    take(numbers, "lr", [&](double x) { o.lr(x); });
    take(numbers, "lr_decay", [&](double x) { o.lr_decay(x); });
    take(numbers, "weight_decay", [&](double x) { o.weight_decay(x); });
    take(numbers, "initial_accumulator_value", [&](double x) { o.initial_accumulator_value(x); });
    take(numbers, "eps", [&](double x) { o.eps(x); });
  };
  return format;
}

// "" for an optimizer that is not known.
std::string name_of(const Optimizer& optimizer) {
  const OptimizerFormat* format = format_of(optimizer);
  return format != nullptr ? format->type : "";
}

}  // namespace

const OptimizerFormat* format_of(const Optimizer& optimizer) {
  static const OptimizerFormat adam = adam_format<AdamParamState, AdamOptions>("Adam");
  static const OptimizerFormat adamw = adam_format<AdamWParamState, AdamWOptions>("AdamW");
  static const OptimizerFormat sgd = sgd_format();
  static const OptimizerFormat rmsprop = rmsprop_format();
  static const OptimizerFormat adagrad = adagrad_format();
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return &adamw;  // fsdp::AdamW is one
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return &adam;
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) return &sgd;
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) return &rmsprop;
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) return &adagrad;
  return nullptr;
}

std::vector<std::string> needed_moments(const Optimizer& optimizer, const Numbers& options) {
  const auto is_set = [&](const char* name) {
    const auto found = options.find(name);
    return found != options.end() && found->second != 0;
  };
  std::vector<std::string> needed;
  if (const std::string type = name_of(optimizer); type == "Adam" || type == "AdamW") {
    needed = {"exp_avg", "exp_avg_sq"};
    // fsdp::AdamW makes this one when it is needed.
    if (is_set("amsgrad") && dynamic_cast<const fsdp::AdamW*>(&optimizer) == nullptr)
      needed.emplace_back("max_exp_avg_sq");
  } else if (type == "SGD") {
    if (is_set("momentum")) needed = {"momentum_buffer"};
  } else if (type == "RMSprop") {
    needed = {"square_avg"};
    if (is_set("momentum")) needed.emplace_back("momentum_buffer");
    if (is_set("centered")) needed.emplace_back("grad_avg");
  } else if (type == "Adagrad") {
    needed = {"sum"};
  }
  return needed;
}

std::optional<at::ScalarType> dtype_of_moments(const Optimizer& optimizer, const Numbers& options,
                                               const at::Tensor& param, at::ScalarType gradient) {
  if (const auto* ours = dynamic_cast<const fsdp::AdamW*>(&optimizer))
    return moment_type(param, ours->moments());
  const std::string type = name_of(optimizer);
  if (type.empty()) return std::nullopt;
  if (type != "SGD") return param.scalar_type();
  // The momentum buffer is a copy of the first gradient, or of its sum with the decay.
  const auto decay = options.find("weight_decay");
  const bool decays = decay != options.end() && decay->second != 0;
  return decays ? c10::promoteTypes(gradient, param.scalar_type()) : gradient;
}

int64_t state_bytes(const Optimizer& optimizer, const OptimizerFormat* format) {
  int64_t bytes = 0;
  if (format == nullptr) format = format_of(optimizer);
  if (format == nullptr) return 0;
  for (const auto& [param, state] : optimizer.state())
    for (const auto& [name, tensor] : format->tensors(*state)) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace fsdp::detail
