// State dicts of optimizers.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/zeros.h>
#include <fsdp/error.h>
#include <fsdp/state_dict.h>

#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/state_entries.h"
#include "transfer/gather_path.h"
#include "watch/quiet.h"

namespace fsdp {

namespace detail {

namespace {

constexpr std::chrono::minutes kPatience{10};

// As the optimizer has it: complex128 is held as pairs.
at::Tensor elements_of(const Held& held) {
  return held.real_pairs ? at::view_as_complex(held.flat.view({-1, 2})) : held.flat;
}

// Begins the name of a moment that is this rank's run of elements.
constexpr std::string_view kFlat = "flat.";

StateEntry local_entry(const Held& held, const StateDictOptions& options) {
  StateEntry entry = flat_entry(elements_of(held), options);
  entry.shape = held.shape;
  if (held.real_pairs) entry.shape.pop_back();
  return entry;
}

// An entry of a state dict that is loaded.
struct Given {
  const StateEntry* entry = nullptr;
  bool flat = false;
};

// By the names that checkpoints use; those without a box say nothing.
std::map<std::string, Given> given_by(const StateDict& state) {
  std::map<std::string, Given> given;
  for (const auto& item : state) {
    const bool flat = item.key().starts_with(kFlat);
    if (!item.value().boxes.empty())
      given[flat ? item.key().substr(kFlat.size()) : item.key()] = {.entry = &item.value(), .flat = flat};
  }
  return given;
}

SavedTensor described(const std::string& name, const StateEntry& entry) {
  SavedTensor tensor;
  const at::ScalarType dtype = entry.boxes.front().tensor.scalar_type();
  tensor.real_pairs = dtype == at::kComplexDouble;
  tensor.shape = entry.shape;
  if (tensor.real_pairs) tensor.shape.push_back(2);
  tensor.dtype = tensor.real_pairs ? "F64" : dtype_name(dtype, name);
  return tensor;
}

bool counts_steps(const std::string& name) { return name.ends_with(".step"); }

// A rank whose slice of a parameter is empty may have no state for it: of all ranks together, dtypes by name,
// and for a number of steps the number.
Json moments_of_all(const Model& model, const std::vector<Holding>& held) {
  Json mine = Json::object();
  for (const Holding& one : held)
    mine[one.held.name] = {{"dtype", static_cast<int>(elements_of(one.held).scalar_type())},
                           {"steps", counts_steps(one.held.name) ? one.held.flat.item<double>() : 0.0}};
  Meeting meeting(model.world, "an optimizer's state dict is made", kPatience);
  Json all = Json::object();
  for (const std::string& text : meeting.to_0(mine.dump())) {
    const Json theirs = parse_json(text, "moments of a rank");
    for (const auto& [name, about] : theirs.items()) {
      // An optimizer may leave out empty slices: the owners have made the most steps.
      const double before = all.contains(name) ? all[name].at("steps").get<double>() : 0.0;
      all[name] = about;
      all[name]["steps"] = std::max(before, about.at("steps").get<double>());
    }
  }
  const std::string text = meeting.from_0(all.dump());
  meeting.end();
  return parse_json(text, "moments of all ranks");
}

// `flat`, this rank's part of a parameter, becomes all of it. Collective in the row.
at::Tensor gathered(Model& model, const UnitParam& param, const at::Tensor& flat) {
  const UnitRegion& region = param.region();
  if (param.unit->ranks() == 1) return flat.as_strided(param.place.param.shape, param.strides);
  const ShardRange own =
      param.unit->spec.layout.range(param.place, model.mesh.shard_index(param.unit->ranks()));
  const auto options = flat.options().device(model.world.device());  // moments may be in host memory
  const at::Tensor shard = at::zeros({region.spec.layout.shard_numel}, options);
  shard.narrow(0, own.in_shard, own.size).copy_(flat);
  const at::Tensor whole = at::empty({region.spec.total()}, options);
  gather_exactly(model.mesh.row, shard, whole, std::nullopt, param.names.front());
  return param.view_of(whole);
}

}  // namespace

}  // namespace detail

StateDict optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDictOptions& options, const OptimizerFormat* format) {
  detail::Model& own = detail::model_of(model.engine());
  own.check_between_steps("a state dict");
  const detail::Quiet quiet;
  const std::vector<detail::Holding> held = detail::OptimizerState(own, optimizer, format).held_here();
  std::map<std::string, const detail::Held*> mine;
  for (const detail::Holding& one : held) mine[one.held.name] = &one.held;
  StateDict state("moment");
  if (options.type != StateDictType::full) {
    for (const auto& [name, one] : mine)
      if (options.type == StateDictType::local && !detail::counts_steps(name))
        state.insert(std::string(detail::kFlat) + name, detail::local_entry(*one, options));
      else
        state.insert(name, detail::box_entry(*one, options));
    return state;
  }
  const bool here = !options.rank0_only || own.world.rank() == 0;
  const detail::Json all = detail::moments_of_all(own, held);
  for (const detail::UnitParam* param : own.params) {
    const std::string prefix = detail::moment_name(param->names.front(), "");
    for (const auto& [name, about] : all.items()) {
      const std::string key = name.starts_with(prefix) ? name.substr(prefix.size()) : ".";
      if (key.find('.') != std::string::npos) continue;
      if (key == "step") {
        const at::Tensor steps =
            at::full({}, about.at("steps").get<double>(), at::TensorOptions().dtype(at::kDouble));
        if (here) state.insert(name, detail::whole_entry(steps));
        continue;
      }
      const auto dtype = static_cast<at::ScalarType>(about.at("dtype").get<int>());
      const auto found = mine.find(name);
      const at::Tensor whole =
          detail::gathered(own, *param,
                           found != mine.end() ? detail::elements_of(*found->second)
                                               : at::empty({0}, param->slice.options().dtype(dtype)));
      if (here) state.insert(name, detail::whole_entry(detail::kept(whole, options)));
    }
  }
  return state;
}

void load_optimizer_state_dict(const ShardedModel& model, torch::optim::Optimizer& optimizer,
                               const StateDict& state, const OptimizerFormat* format) {
  const at::NoGradGuard no_grad;
  detail::Model& own = detail::model_of(model.engine());
  own.check_between_steps("a state dict");
  detail::Meeting meeting(own.world, "an optimizer's state dict is loaded", detail::kPatience);
  std::optional<detail::OptimizerState> prepared;
  std::vector<detail::Held> holes;
  const std::map<std::string, detail::Given> given = detail::given_by(state);
  meeting.agree(detail::error_of([&] {
    prepared.emplace(own, optimizer, format);
    detail::Manifest names;
    for (const auto& [name, one] : given) names.tensors[name] = detail::described(name, *one.entry);
    std::vector<std::string> errors;
    holes = prepared->prepare(
        names, [](const std::string& name) { return name; }, errors);
    for (const detail::Held& hole : holes)
      if (const std::string wrong =
              detail::mismatch(hole, *given.at(hole.name).entry, given.at(hole.name).flat);
          !wrong.empty())
        errors.push_back(wrong);
    std::string words;
    for (const std::string& error : errors) words += "\n  " + error;
    if (!words.empty())
      throw CheckpointError("the state dict does not fit the optimizer; nothing was loaded:" + words);
  }));
  meeting.end();
  own.announce_change();  // a save in the background may still read the moments
  for (const detail::Held& hole : holes)
    if (const detail::Given& one = given.at(hole.name); one.flat)
      detail::fill_flat(hole, *one.entry);
    else
      detail::fill(hole, *one.entry);
  prepared->attach(detail::Json::array());
}

}  // namespace fsdp
