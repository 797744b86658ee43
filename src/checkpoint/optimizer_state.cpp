#include "checkpoint/optimizer_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fsdp/optim.h>

#include "optim/adamw_state.h"
#include "optim/state_format.h"

namespace fsdp::detail {

namespace {

constexpr const char* kSteps = "step";

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

// The parts of the model that each tensor an optimizer may take is.
class KnownTensors {
 public:
  explicit KnownTensors(const Model& model) {
    for (size_t i = 0; i < model.params.size(); ++i) {
      const UnitParam& param = *model.params[i];
      const ShardRange own =
          param.unit->spec.layout.range(param.place, model.mesh.shard_index(param.unit->ranks()));
      OptimizedPart part{.param = &param,
                         .name = param.names.front(),
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
                                               .name = name,
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

}  // namespace

std::string moment_name(const std::string& param, const std::string& key) {
  return "state." + param + "." + key;
}

OptimizerState::OptimizerState(const Model& model, torch::optim::Optimizer& optimizer,
                               const OptimizerFormat* format)
    : model_(model), optimizer_(optimizer), format_(required_format(optimizer, format)) {
  const KnownTensors known(model);
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group)
    for (const at::Tensor& tensor : optimizer.param_groups()[group].params())
      optimized_.push_back({.tensor = tensor, .group = group, .parts = known.of(tensor)});
}

Held OptimizerState::held_part(const OptimizedPart& part, const std::string& name,
                               const at::Tensor& tensor) const {
  if (part.param == nullptr) return make_whole(name, tensor);
  return held_of(model_, *part.param, name, tensor.view({-1}).narrow(0, part.offset, part.size));
}

std::vector<Holding> OptimizerState::held_if(bool OptimizedPart::*wanted) const {
  std::vector<Holding> all;
  for (const Optimized& one : optimized_) {
    const auto state = optimizer_.state().find(one.tensor.unsafeGetTensorImpl());
    if (state == optimizer_.state().end()) continue;
    const OptimizerFormat::Tensors tensors = format_.tensors(*state->second);
    if (tensors.empty()) continue;
    for (const OptimizedPart& part : one.parts) {
      if (wanted != nullptr && !(part.*wanted)) continue;
      for (const auto& [key, tensor] : tensors) {
        TORCH_CHECK(tensor.numel() == one.tensor.numel(), "fsdp: '", moment_name(part.name, key), "' has ",
                    tensor.numel(), " elements, its parameter has ", one.tensor.numel());
        all.push_back({.held = held_part(part, moment_name(part.name, key), tensor.detach()), .saves = true});
      }
      const auto steps = static_cast<double>(format_.steps(*state->second));
      if (wanted == nullptr || part.tells_steps)
        all.push_back({.held = make_whole(moment_name(part.name, kSteps),
                                          at::full({}, steps, at::TensorOptions().dtype(at::kDouble))),
                       .saves = true});
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

std::vector<Held> OptimizerState::prepare(const Manifest& manifest,
                                          const std::function<std::string(const std::string&)>& saved_name,
                                          std::vector<std::string>& errors) {
  std::vector<Held> holes;
  const bool ours = dynamic_cast<const AdamW*>(&optimizer_) != nullptr;  // its moments may lie elsewhere
  prepared_.clear();
  replaced_.clear();
  for (const Optimized& one : optimized_) {
    Prepared state{.of = &one, .tensors = {}, .steps = at::zeros({}, at::TensorOptions().dtype(at::kDouble))};
    OptimizerFormat::Tensors now;
    if (const auto found = optimizer_.state().find(one.tensor.unsafeGetTensorImpl());
        found != optimizer_.state().end())
      now = format_.tensors(*found->second);
    bool any = false;
    for (const OptimizedPart& part : one.parts) {
      const std::string param = saved_name(part.name);
      if (param.empty()) continue;
      replaced_.push_back(one.tensor.unsafeGetTensorImpl());
      const std::string prefix = moment_name(param, "");
      for (auto saved = manifest.tensors.lower_bound(prefix);
           saved != manifest.tensors.end() && saved->first.starts_with(prefix); ++saved) {
        const std::string key = saved->first.substr(prefix.size());
        if (key.find('.') != std::string::npos) continue;  // of a parameter whose name begins like this one
        any = true;
        if (key == kSteps) {
          holes.push_back(make_whole(saved->first, state.steps));
          holes.back().flat = state.steps.view({-1});
          continue;
        }
        const auto dtype = saved->second.real_pairs ? at::kComplexDouble : dtype_of(saved->second.dtype);
        if (!dtype) {
          errors.push_back("'" + saved->first + "' has a dtype this build does not know");
          continue;
        }
        Held shape =
            held_part(part, saved->first, at::empty_like(one.tensor, one.tensor.options().dtype(*dtype)));
        if (shape.shape != saved->second.shape) {
          errors.push_back("'" + saved->first + "' has another shape than its parameter");
          continue;
        }
        at::Tensor& tensor = state.tensors[key];
        if (!tensor.defined() && now.contains(key) && now.at(key).scalar_type() == *dtype)
          tensor = now.at(key);
        if (!tensor.defined())
          tensor = ours ? zero_moment(one.tensor.detach(), *dtype)
                        : at::zeros_like(one.tensor.detach(), one.tensor.options().dtype(*dtype));
        Held hole = held_part(part, saved->first, tensor);
        if (part.param == nullptr) hole.flat = tensor.view({-1});
        holes.push_back(std::move(hole));
      }
    }
    if (any) prepared_.push_back(std::move(state));
  }
  return holes;
}

void OptimizerState::attach(const Json& groups) {
  auto& states = optimizer_.state();
  for (const c10::TensorImpl* param : replaced_) states.erase(const_cast<c10::TensorImpl*>(param));
  for (const Prepared& one : prepared_)
    states[one.of->tensor.unsafeGetTensorImpl()] =
        format_.make(one.tensors, static_cast<int64_t>(one.steps.item<double>()));
  for (size_t i = 0; i < groups.size() && i < optimizer_.param_groups().size(); ++i) {
    OptimizerFormat::Numbers numbers;
    const JsonObject options = JsonObject(groups[i], "an optimizer's group").object("options");
    for (const auto& [name, value] : options.json().items())
      numbers[name] = number_of(value, "option '" + name + "'");
    format_.set_options(optimizer_.param_groups()[i].options(), numbers);
  }
}

}  // namespace fsdp::detail
