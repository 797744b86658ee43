#include "checkpoint/optimizer_state.h"

#include <ATen/ops/full.h>

#include "optim/adamw_state.h"
#include "optim/state_format.h"

namespace fsdp::detail {

namespace {

const OptimizerFormat& required_format(const torch::optim::Optimizer& optimizer,
                                       const OptimizerFormat* given) {
  const OptimizerFormat* format = given != nullptr ? given : format_of(optimizer);
  TORCH_CHECK(
      format != nullptr,
      "fsdp: no format is known for the state of this optimizer. Adam, AdamW, SGD, RMSprop, Adagrad and "
      "fsdp::AdamW are; for others describe it in RunState::optimizer_format");
  TORCH_CHECK(!format->type.empty() && format->tensors && format->steps && format->make && format->options &&
                  format->set_options,
              "fsdp: RunState::optimizer_format has an empty member");
  return *format;
}

// Maps each tensor that an optimizer may take to the parts of the model it consists of.
class KnownTensors {
 public:
  KnownTensors(const Model& model, const std::string& prefix) {
    for (size_t i = 0; i < model.params.size(); ++i) {
      const UnitParam& param = *model.params[i];
      const ShardRange own =
          param.unit->spec.layout.range(param.placement, model.mesh.shard_index(param.unit->ranks()));
      OptimizedPart part{.param = &param,
                         .name = prefix + param.names.front(),
                         .offset = 0,
                         .size = param.slice.numel(),
                         .saves = saves_param(model, i),
                         .tells_steps = own.start == 0};
      parts_[param.slice.unsafeGetTensorImpl()] = {part};
      part.offset = own.in_shard;
      parts_[param.region().shard.unsafeGetTensorImpl()].push_back(part);
    }
    for (const auto& [name, tensor] : own_tensors(model))
      parts_[tensor.unsafeGetTensorImpl()] = {{.param = nullptr,
                                               .name = prefix + name,
                                               .offset = 0,
                                               .size = tensor.numel(),
                                               .saves = model.world.rank() == 0,
                                               .tells_steps = true}};
  }

  const std::vector<OptimizedPart>& of(const at::Tensor& tensor) const {
    const auto found = parts_.find(tensor.unsafeGetTensorImpl());
    TORCH_CHECK(found != parts_.end(),
                "fsdp: the optimizer has a tensor that is not of this model. Give it model.parameters()");
    return found->second;
  }

 private:
  std::map<const c10::TensorImpl*, std::vector<OptimizedPart>> parts_;
};

Held steps(const OptimizedPart& part, int64_t count) {
  return make_whole(moment_name(part.name, kSteps),
                    at::full({}, static_cast<double>(count), at::TensorOptions().dtype(at::kDouble)));
}

}  // namespace

std::string moment_name(const std::string& param, const std::string& key) {
  return "state." + param + "." + key;
}
std::string without_key(const std::string& moment) { return moment.substr(0, moment.rfind('.')); }
std::string key_of(const std::string& moment) { return moment.substr(moment.rfind('.') + 1); }

OptimizerFormat::Tensors OptimizerState::tensors_of(const Optimized& one) const {
  const auto found = optimizer_.state().find(one.tensor.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? OptimizerFormat::Tensors{} : format_.tensors(*found->second);
}

int64_t OptimizerState::steps_of(const Optimized& one) const {
  const auto found = optimizer_.state().find(one.tensor.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? 0 : format_.steps(*found->second);
}

OptimizerState::OptimizerState(const Model& model, torch::optim::Optimizer& optimizer,
                               const OptimizerFormat* format, const std::string& prefix)
    : model_(model), optimizer_(optimizer), format_(required_format(optimizer, format)) {
  const KnownTensors known(model, prefix);
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group)
    for (const at::Tensor& tensor : optimizer.param_groups()[group].params())
      optimized_.push_back({.tensor = tensor, .group = group, .parts = known.of(tensor)});
}

Held OptimizerState::held_part(const OptimizedPart& part, const std::string& name,
                               const at::Tensor& tensor) const {
  return held_of(model_, *part.param, name, tensor.view({-1}).narrow(0, part.offset, part.size));
}

Held OptimizerState::hole(const OptimizedPart& part, const std::string& name,
                          const at::Tensor& tensor) const {
  return part.param == nullptr ? make_dense(name, tensor) : held_part(part, name, tensor);
}

Holding OptimizerState::moment(const Optimized& of, const OptimizedPart& part, const std::string& key,
                               const at::Tensor& tensor) const {
  const std::string name = moment_name(part.name, key);
  TORCH_CHECK(tensor.numel() == of.tensor.numel(), "fsdp: '", name, "' has ", tensor.numel(),
              " elements, its parameter has ", of.tensor.numel());
  TORCH_CHECK(key != kSteps && key.find('.') == std::string::npos,
              "fsdp: RunState::optimizer_format calls a ", "tensor '", key,
              "': use another name than 'step', without a dot");
  if (part.param == nullptr) return {.held = make_whole(name, tensor.detach()), .saves = true};
  Holding holding{.held = held_part(part, name, tensor.detach()), .saves = true};
  holding.held.live = is_watched_moment(tensor);
  return holding;
}

std::vector<Holding> OptimizerState::held() const {
  std::vector<Holding> all;
  for (const Optimized& one : optimized_) {
    const OptimizerFormat::Tensors tensors = tensors_of(one);
    for (const OptimizedPart& part : one.parts) {
      if (!part.saves || tensors.empty()) continue;
      for (const auto& [key, tensor] : tensors) all.push_back(moment(one, part, key, tensor));
      if (part.tells_steps) all.push_back({.held = steps(part, steps_of(one)), .saves = true});
    }
  }
  return all;
}

std::vector<Held> OptimizerState::held_here() const {
  std::vector<Held> all;
  for (const Optimized& one : optimized_) {
    const OptimizerFormat::Tensors tensors = tensors_of(one);
    for (const OptimizedPart& part : one.parts) {
      for (const auto& [key, tensor] : tensors) all.push_back(moment(one, part, key, tensor).held);
      all.push_back(steps(part, tensors.empty() ? 0 : steps_of(one)));
    }
  }
  return all;
}

Json OptimizerState::groups() const {
  Json groups = Json::array();
  for (auto& group : optimizer_.param_groups()) {
    Json options = Json::object();
    for (const auto& [name, number] : format_.options(group.options())) options[name] = number_json(number);
    groups.push_back({{"options", options}, {"params", Json::array()}});
  }
  for (const Optimized& one : optimized_)
    for (const OptimizedPart& part : one.parts) groups[one.group]["params"].push_back(part.name);
  return groups;
}

}  // namespace fsdp::detail
