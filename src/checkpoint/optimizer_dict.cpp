// State dicts of optimizers.
#include <fsdp/error.h>
#include <fsdp/state_dict.h>

#include <set>

#include "checkpoint/errors.h"
#include "checkpoint/full_moments.h"
#include "checkpoint/meeting.h"
#include "checkpoint/optimizer_load.h"
#include "checkpoint/state_entries.h"
#include "launch/in_call.h"
#include "watch/quiet.h"

namespace fsdp {

namespace detail {

namespace {

constexpr std::chrono::minutes kPatience{10};

// Prefix of the name of a moment that has this rank's elements only.
constexpr std::string_view kFlat = "flat.";

StateEntry local_entry(const Held& held, const StateDictOptions& options) {
  StateEntry entry = flat_entry(held.elements(), options);
  entry.shape = held.tensor_shape();
  return entry;
}

// An entry of the state dict being loaded.
struct Given {
  const StateEntry* entry = nullptr;
  bool flat = false;
};

// Entries by the names that checkpoints use.
std::map<std::string, Given> given_by(const StateDict& state, std::vector<std::string>& errors) {
  std::map<std::string, Given> given;
  for (const auto& item : state) {
    const bool flat = item.key().starts_with(kFlat);
    const std::string name = flat ? item.key().substr(kFlat.size()) : item.key();
    if (!given.try_emplace(name, Given{.entry = &item.value(), .flat = flat}).second)
      errors.push_back("'" + name + "' is there twice, once for this rank alone ('" + std::string(kFlat) +
                       name + "')");
  }
  return given;
}

SavedTensor described(const std::string& name, const StateEntry& entry) {
  SavedTensor tensor;
  tensor.shape = entry.shape;
  if (entry.boxes.empty() || !entry.boxes.front().tensor.defined()) return tensor;
  const at::ScalarType dtype = entry.boxes.front().tensor.scalar_type();
  tensor.real_pairs = dtype == at::kComplexDouble;
  if (tensor.real_pairs) tensor.shape.push_back(2);
  tensor.dtype = tensor.real_pairs ? "F64" : dtype_name(dtype, name);
  return tensor;
}

// A load of a state dict; every rank has its own.
class DictLoad {
 public:
  DictLoad(Model& model, torch::optim::Optimizer& optimizer, const StateDict& state,
           const OptimizerFormat* format)
      : given_(given_by(state, errors_)),
        names_(names_in(model, given_)),
        load_(model, optimizer, format, [this](const std::string& name) { return saved_name(name); }) {}

  // Throws CheckpointError with all entries that do not fit.
  void prepare() {
    look_for_names();
    std::map<std::string, SavedTensor> saved;
    for (const auto& [name, one] : given_) saved[name] = described(name, *one.entry);
    load_.prepare_moments(saved, SavedBy::this_rank, errors_);
    for (const std::vector<Held>* holes : {&load_.steps(), &load_.moments()})
      for (const Held& hole : *holes)
        if (const std::string wrong = mismatch(hole, *at(hole).entry, at(hole).flat); !wrong.empty())
          errors_.push_back(wrong);
    if (errors_.empty()) {
      fill_all(load_.steps());
      load_.make_states(errors_);
    }
    std::string words;
    for (const std::string& error : errors_) words += "\n  " + error;
    if (!words.empty())
      throw CheckpointError("the state dict does not fit the optimizer; nothing was loaded:" + words);
  }

  void finish() {
    fill_all(load_.moments());
    load_.attach();
  }

 private:
  // For each tied parameter, the name that `given` has.
  static std::map<std::string, std::string> names_in(const Model& model,
                                                     const std::map<std::string, Given>& given) {
    std::map<std::string, std::string> names;
    for (const UnitParam* param : model.params)
      for (const std::string& name : param->names)
        if (given.contains(moment_name(name, kSteps))) names.emplace(param->names.front(), name);
    return names;
  }
  std::string saved_name(const std::string& name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? name : found->second;
  }

  void look_for_names() {
    std::set<std::string> known;
    for (const Optimized& one : load_.state().optimized())
      for (const OptimizedPart& part : one.parts) {
        const std::string steps = moment_name(saved_name(part.name), kSteps);
        known.insert(without_key(steps));
        if (!given_.contains(steps)) errors_.push_back("'" + steps + "' is missing");
      }
    for (const auto& [name, one] : given_)
      if (!known.contains(without_key(name))) errors_.push_back("'" + name + "' is unexpected");
  }

  const Given& at(const Held& hole) const { return given_.at(hole.name); }
  void fill_all(const std::vector<Held>& holes) const {
    for (const Held& hole : holes)
      if (at(hole).flat)
        fill_flat(hole, *at(hole).entry);
      else
        fill(hole, *at(hole).entry);
  }

  std::vector<std::string> errors_;
  const std::map<std::string, Given> given_;
  const std::map<std::string, std::string> names_;
  OptimizerLoad load_;
};

}  // namespace

}  // namespace detail

StateDict optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDictOptions& options, const OptimizerFormat* format) {
  detail::Model& own = detail::model_of(model.engine());
  own.check_between_steps("a state dict");
  const detail::InCall call(own.world, "optimizer_state_dict()");
  const detail::Quiet quiet;
  if (options.type == StateDictType::full) return detail::full_moments(own, optimizer, options, format);
  StateDict state("moment");
  std::set<std::string> whole;  // each rank has all of them, so none is flat
  for (const auto& [name, tensor] : detail::own_tensors(own))
    whole.insert(detail::without_key(detail::moment_name(name, detail::kSteps)));
  for (const detail::Held& one : detail::OptimizerState(own, optimizer, format).held_here())
    if (options.type == StateDictType::local && !detail::counts_steps(one.name) &&
        !whole.contains(detail::without_key(one.name)))
      state.insert(std::string(detail::kFlat) + one.name, detail::local_entry(one, options));
    else
      state.insert(one.name, detail::box_entry(one, options));
  return state;
}

void load_optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDict& state, const OptimizerFormat* format) {
  const at::NoGradGuard no_grad;
  detail::Model& own = detail::model_of(model.engine());
  own.check_between_steps("a state dict");
  detail::Meeting meeting(own.world, "an optimizer's state dict is loaded", detail::kPatience);
  std::optional<detail::DictLoad> load;
  meeting.agree(detail::error_of([&] { load.emplace(own, optimizer, state, format).prepare(); }));
  meeting.end();
  own.announce_change();  // a background save may still read the moments
  load->finish();
}

}  // namespace fsdp
