#include "checkpoint/optimizer_load.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/optimizer_groups.h"
#include "optim/adamw_state.h"
#include "optim/state_format.h"

namespace fsdp::detail {

namespace {

constexpr const char* kGroup = "a group of the saved optimizer";

const Json& array_of(const Json& value, const std::string& where) {
  if (!value.is_array()) JsonObject(value, where).fail("is no list");
  return value;
}

GroupNames names_of(const JsonObject& group, const std::set<std::string>& loaded) {
  GroupNames names;
  for (const Json& name : array_of(group.at("params"), kGroup)) {
    if (!name.is_string()) group.fail("has a parameter whose name is no text");
    if (const auto text = name.get<std::string>(); loaded.contains(text))
      names.loaded.insert(text);
    else
      names.has_others = true;
  }
  return names;
}

OptimizerFormat::Numbers numbers_of(const JsonObject& group) {
  OptimizerFormat::Numbers numbers;
  const JsonObject options = group.object("options");
  for (const auto& [name, value] : options.json().items())
    numbers[name] = number_of(value, "option '" + name + "'");
  return numbers;
}

std::string missing(const std::string& name) { return "'" + name + "' is missing"; }

}  // namespace

OptimizerLoad::OptimizerLoad(const Model& model, torch::optim::Optimizer& optimizer,
                             const OptimizerFormat* format, SavedName saved_name, const std::string& prefix)
    : state_(model, optimizer, format, prefix),
      optimizer_(optimizer),
      format_is_ours_(format == nullptr),
      saved_name_(std::move(saved_name)),
      options_(optimizer.param_groups().size()) {}

void OptimizerLoad::prepare_groups(const Json& run, const std::set<std::string>& loaded,
                                   std::vector<std::string>& errors) {
  if (!run.contains("optimizer")) {
    errors.emplace_back(kNoOptimizer);
    return;
  }
  const JsonObject saved(run.at("optimizer"), "the saved optimizer");
  const Json& groups = array_of(saved.at("groups"), "the groups of the saved optimizer");
  if (saved.text("type") != state_.type())
    errors.push_back("the checkpoint has a " + saved.text("type") + ", the run has a " + state_.type());
  else if (groups.size() != options_.size())
    errors.push_back("the checkpoint has " + std::to_string(groups.size()) +
                     " parameter groups, the run has " + std::to_string(options_.size()));
  else
    take_options(groups, loaded, errors);
}

void OptimizerLoad::take_options(const Json& groups, const std::set<std::string>& loaded,
                                 std::vector<std::string>& errors) {
  std::vector<GroupNames> here(options_.size()), saved;
  for (const Optimized& one : state_.optimized())
    for (const OptimizedPart& part : one.parts)
      if (const std::string name = saved_name_(part.name); !name.empty())
        here[one.group].loaded.insert(name);
      else
        here[one.group].has_others = true;
  std::vector<OptimizerFormat::Numbers> numbers;
  for (const Json& json : groups) {
    const JsonObject group(json, kGroup);
    saved.push_back(names_of(group, loaded));
    numbers.push_back(numbers_of(group));
  }
  const auto matches = match_groups(here, saved, errors);
  for (size_t i = 0; i < matches.size(); ++i)
    if (matches[i]) options_[i] = numbers[*matches[i]];
}

OptimizerFormat::Numbers OptimizerLoad::options_of(size_t group) const {
  return options_[group] ? *options_[group]
                         : state_.format().options(optimizer_.param_groups()[group].options());
}

void OptimizerLoad::prepare_moments(const std::map<std::string, SavedTensor>& saved, SavedBy by,
                                    std::vector<std::string>& errors) {
  saved_by_ = by;
  for (const Optimized& one : state_.optimized()) {
    NextState next{.of = &one, .now = state_.tensors_of(one), .tensors = {}, .parts = {}, .made = nullptr};
    for (const OptimizedPart& part : one.parts)
      if (const std::string name = saved_name_(part.name); !name.empty())
        add_part(next,
                 {.part = &part,
                  .name = name,
                  .keys = {},
                  .steps = at::zeros({}, at::TensorOptions().dtype(at::kDouble))},
                 saved, errors);
    if (!next.parts.empty()) next_.push_back(std::move(next));
  }
}

void OptimizerLoad::add_part(NextState& next, SavedPart part, const std::map<std::string, SavedTensor>& saved,
                             std::vector<std::string>& errors) {
  const std::string prefix = moment_name(part.name, "");
  for (auto found = saved.lower_bound(prefix); found != saved.end() && found->first.starts_with(prefix);
       ++found) {
    const std::string key = found->first.substr(prefix.size());
    if (key.find('.') != std::string::npos) continue;  // of another parameter whose name begins like this
    if (key != kSteps) {
      part.keys.insert(key);
      add_moment(next, part, key, found->second, errors);
    } else if (found->second.shape.empty()) {
      part.has_steps = true;
      steps_.push_back(make_dense(found->first, part.steps));
    } else {
      errors.push_back("'" + found->first + "' is not a scalar");
    }
  }
  next.parts.push_back(std::move(part));
}

// The dtype in which this optimizer would make the moment.
at::ScalarType OptimizerLoad::dtype_here(const NextState& next, const SavedPart& part, const std::string& key,
                                         const SavedTensor& saved) const {
  const at::Tensor& param = next.of->tensor;
  const at::ScalarType gradient =
      part.part->param != nullptr ? part.part->param->region().gradient_type() : param.scalar_type();
  if (format_is_ours_)
    if (const auto dtype = dtype_of_moments(optimizer_, options_of(next.of->group), param, gradient))
      return *dtype;
  if (const auto now = next.now.find(key); now != next.now.end()) return now->second.scalar_type();
  return saved.real_pairs ? at::kComplexDouble : dtype_of(saved.dtype).value_or(param.scalar_type());
}

at::Tensor OptimizerLoad::room_for(const NextState& next, const std::string& key,
                                   at::ScalarType dtype) const {
  const at::Tensor param = next.of->tensor.detach();
  const auto now = next.now.find(key);
  const bool has_one = now != next.now.end() && now->second.sizes() == param.sizes();
  if (has_one && now->second.scalar_type() == dtype && now->second.is_non_overlapping_and_dense())
    return now->second;
  const bool ours = dynamic_cast<const AdamW*>(&optimizer_) != nullptr;  // its moments may lie elsewhere
  const at::Tensor room =
      ours ? zero_moment(param, dtype) : at::zeros_like(param, param.options().dtype(dtype));
  return has_one ? room.copy_(now->second) : room;  // parts that are not loaded keep their values
}

void OptimizerLoad::add_moment(NextState& next, const SavedPart& part, const std::string& key,
                               const SavedTensor& saved, std::vector<std::string>& errors) {
  const std::string name = moment_name(part.name, key);
  const auto dtype = dtype_of(saved.dtype);
  if (!dtype && !saved.dtype.empty()) {
    errors.push_back("'" + name + "' has a dtype this build does not know");
    return;
  }
  at::Tensor& tensor = next.tensors[key];
  if (!tensor.defined()) tensor = room_for(next, key, dtype_here(next, part, key, saved));
  Held hole = state_.hole(*part.part, name, tensor);
  const at::ScalarType here = hole.flat.scalar_type();
  std::vector<int64_t> shape = saved.shape;
  if (!dtype && hole.real_pairs) shape.push_back(2);
  if (hole.shape != shape) {
    errors.push_back("'" + name + "' has another shape than its parameter");
    return;
  }
  if (dtype && *dtype != here) {
    const std::string words = "'" + name + "' has the dtype " + dtype_name(here, name) +
                              " in this optimizer, " + saved.dtype + " where it was saved";
    const bool fits = c10::isFloatingType(*dtype) && c10::isFloatingType(here);
    (fits ? casts_ : errors).push_back(words);
    if (!fits) return;
  }
  moments_.push_back(std::move(hole));
}

void OptimizerLoad::make_states(std::vector<std::string>& errors) {
  for (size_t i = 0; i < options_.size(); ++i)  // on a copy: values that cannot be set are refused here
    if (options_[i])
      state_.format().set_options(*optimizer_.param_groups()[i].options().clone(), *options_[i]);
  for (NextState& next : next_) {
    const size_t before = errors.size();
    for (const SavedPart& part : next.parts)
      if (counts(*part.part)) check_part(next, part, errors);
    if (errors.size() == before) check_same_steps(next, errors);
    if (errors.size() == before && !next.tensors.empty()) make_state(next, errors);
  }
}

bool OptimizerLoad::counts(const OptimizedPart& part) const {
  const bool all = saved_by_ == SavedBy::all_ranks && part.param != nullptr;
  return (all ? part.param->placement.numel : part.size) > 0;
}

void OptimizerLoad::check_part(const NextState& next, const SavedPart& part,
                               std::vector<std::string>& errors) const {
  const double steps = part.steps.item<double>();
  if (!(steps >= 0 && steps < 0x1p53 && std::floor(steps) == steps))
    errors.push_back("'" + moment_name(part.name, kSteps) + "' is " + std::to_string(steps) +
                     ", which is no number of steps");
  if (part.keys.empty() && steps == 0) return;                         // it has no state
  const bool counts_none = format_is_ours_ && state_.type() == "SGD";  // PyTorch's counts no steps
  if (!part.has_steps && !counts_none) errors.push_back(missing(moment_name(part.name, kSteps)));
  std::vector<std::string> needed;
  if (format_is_ours_)
    needed = needed_moments(optimizer_, options_of(next.of->group));
  else if (saved_by_ == SavedBy::this_rank)
    for (const auto& [key, tensor] : next.now) needed.push_back(key);
  bool whole = true;
  for (const std::string& key : needed) {
    if (part.keys.contains(key)) continue;
    errors.push_back(missing(moment_name(part.name, key)));
    whole = false;
  }
  if (part.keys.empty() && whole)
    errors.push_back("'" + part.name + "' has " + std::to_string(static_cast<int64_t>(steps)) +
                     " steps and no moments");
}

// A flat shard has one state for all of its parameters.
void OptimizerLoad::check_same_steps(const NextState& next, std::vector<std::string>& errors) const {
  const SavedPart* first = nullptr;
  const auto steps_of = [](const SavedPart& part) { return static_cast<int64_t>(part.steps.item<double>()); };
  const std::string reason =
      "; they lie in one flat shard, of which the optimizer counts steps and keeps moments as of one "
      "parameter. Load into an optimizer over model.parameters()";
  for (const SavedPart& part : next.parts) {
    if (!counts(*part.part)) continue;
    if (first == nullptr) first = &part;
    if (steps_of(part) != steps_of(*first))
      errors.push_back("'" + first->name + "' made " + std::to_string(steps_of(*first)) + " steps, '" +
                       part.name + "' made " + std::to_string(steps_of(part)) + reason);
    else if (part.keys != first->keys)
      errors.push_back("'" + first->name + "' and '" + part.name + "' have different moments" + reason);
    else
      continue;
    return;
  }
  for (const OptimizedPart& part : next.of->parts)
    if (first != nullptr && counts(part) && saved_name_(part.name).empty() &&
        state_.steps_of(*next.of) != steps_of(*first)) {
      errors.push_back("'" + first->name + "' made " + std::to_string(steps_of(*first)) + " steps, '" +
                       part.name + "', which is not loaded, " + std::to_string(state_.steps_of(*next.of)) +
                       reason);
      return;
    }
}

void OptimizerLoad::make_state(NextState& next, std::vector<std::string>& errors) const {
  double steps = 0;
  for (const SavedPart& part : next.parts)
    if (part.has_steps) steps = std::max(steps, part.steps.item<double>());
  next.made = state_.format().make(next.tensors, static_cast<int64_t>(steps));
  if (!format_is_ours_) return;
  const OptimizerFormat::Tensors taken = state_.format().tensors(*next.made);
  for (const SavedPart& part : next.parts)
    for (const std::string& key : part.keys)
      if (!taken.contains(key))
        errors.push_back("'" + moment_name(part.name, key) + "' is unknown to " + state_.type());
}

void OptimizerLoad::attach() {
  for (NextState& next : next_) {
    optimizer_.state().erase(next.of->tensor.unsafeGetTensorImpl());
    if (next.made) optimizer_.state()[next.of->tensor.unsafeGetTensorImpl()] = std::move(next.made);
  }
  for (size_t i = 0; i < options_.size(); ++i)
    if (options_[i]) state_.format().set_options(optimizer_.param_groups()[i].options(), *options_[i]);
}

}  // namespace fsdp::detail
