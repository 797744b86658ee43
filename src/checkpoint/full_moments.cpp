#include "checkpoint/full_moments.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/state_entries.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

namespace {

StateEntry steps_entry(double steps) {
  return whole_entry(at::full({}, steps, at::TensorOptions().dtype(at::kDouble)));
}

// The ranks' state of a parameter.
struct Kept {
  std::map<std::string, at::ScalarType> moments;  // by key
  double steps = 0;
};

Json text_of(const std::vector<Held>& held) {
  Json text = Json::object();
  for (const Held& one : held)
    text[one.name] =
        counts_steps(one.name) ? one.flat.item<double>() : static_cast<double>(one.elements().scalar_type());
  return text;
}

// By "state.<parameter>", over all ranks: a rank whose slice of a parameter is empty may have no state.
std::map<std::string, Kept> kept_by_all(Meeting& meeting, const std::vector<Held>& held) {
  Json all = Json::object();
  for (const std::string& text : meeting.to_0(text_of(held).dump())) {
    const Json theirs = parse_json(text, "moments of a rank");
    for (const auto& [name, number] : theirs.items())  // owners have done the most steps
      all[name] = std::max(number.get<double>(), all.value(name, 0.0));
  }
  all = parse_json(meeting.from_0(all.dump()), "moments of all ranks");
  std::map<std::string, Kept> kept;
  for (const auto& [name, number] : all.items()) {
    Kept& one = kept[without_key(name)];
    if (counts_steps(name))
      one.steps = number.get<double>();
    else
      one.moments[key_of(name)] = static_cast<at::ScalarType>(number.get<double>());
  }
  return kept;
}

// Builds an optimizer's state dict with whole tensors. Moments of a region are gathered together.
class FullMoments {
 public:
  FullMoments(Model& model, const std::vector<Held>& held, const StateDictOptions& options)
      : model_(model), options_(options), here_(!options.rank0_only || model.world.rank() == 0) {
    for (const Held& one : held) mine_[one.name] = &one;
  }

  StateDict collect(const std::map<std::string, Kept>& kept) {
    std::set<std::string> sharded;
    for (const auto& unit : model_.units)
      for (const auto& region : unit->regions) add_region(*region, kept, sharded);
    for (const auto& [name, one] : mine_)  // ignored parameters: each rank has all of them
      if (here_ && !counts_steps(name) && !sharded.contains(without_key(name)))
        add(name, one->elements().view(one->tensor_shape()));
    for (const auto& [name, one] : kept)
      if (here_) state_.insert(name + "." + kSteps, steps_entry(one.steps));
    return std::move(state_);
  }

 private:
  using Params = std::vector<std::pair<const UnitParam*, std::string>>;  // with the moment's name

  void add_region(const UnitRegion& region, const std::map<std::string, Kept>& kept,
                  std::set<std::string>& sharded) {
    std::map<std::pair<std::string, at::ScalarType>, Params> together;
    for (const auto& param : region.unit->params) {
      if (&param->region() != &region) continue;
      const auto found = kept.find(without_key(moment_name(param->names.front(), kSteps)));
      if (found == kept.end()) continue;
      sharded.insert(found->first);
      for (const auto& [key, dtype] : found->second.moments)
        together[{key, dtype}].emplace_back(param.get(), found->first + "." + key);
    }
    for (const auto& [what, params] : together)
      if (region.unit->ranks() == 1)
        add_replicated(params);
      else
        add_gathered(region, what.second, params);
  }

  void add_replicated(const Params& params) {
    for (const auto& [param, name] : params)
      if (const auto found = mine_.find(name); here_ && found != mine_.end())
        add(name, found->second->elements().as_strided(param->placement.param.shape, param->strides));
  }

  void add_gathered(const UnitRegion& region, at::ScalarType dtype, const Params& params) {
    const auto& layout = region.unit->spec.layout;
    const int index = model_.mesh.shard_index(region.unit->ranks());
    // Moments may lie in host memory.
    const auto options = at::TensorOptions().dtype(dtype).device(model_.world.device());
    const at::Tensor shard = at::zeros({region.spec.layout.shard_numel}, options);
    for (const auto& [param, name] : params)
      if (const auto found = mine_.find(name); found != mine_.end()) {
        const ShardRange own = layout.range(param->placement, index);
        shard.narrow(0, own.in_shard, own.size).copy_(found->second->elements());
      }
    const at::Tensor whole = at::empty({here_ ? region.spec.total() : 0}, options);
    if (!options_.rank0_only)
      gather_exactly(model_.mesh.row, shard, whole, std::nullopt, region.unit->name());
    else if (model_.mesh.in_world(0) == 0)  // the row of rank 0
      gather_exactly(model_.mesh.row, shard, whole, 0, region.unit->name());
    if (!here_) return;
    for (const auto& [param, name] : params) add(name, param->view_of(whole));
  }

  void add(const std::string& name, const at::Tensor& whole) {
    state_.insert(name, whole_entry(kept(whole, options_)));
  }

  Model& model_;
  const StateDictOptions& options_;
  const bool here_;
  std::map<std::string, const Held*> mine_;
  StateDict state_{"moment"};
};

}  // namespace

StateDict full_moments(Model& model, torch::optim::Optimizer& optimizer, const StateDictOptions& options,
                       const OptimizerFormat* format) {
  Meeting meeting(model.world, "an optimizer's state dict is made", std::chrono::minutes(10));
  std::vector<Held> held;
  meeting.agree(error_of([&] { held = OptimizerState(model, optimizer, format).held_here(); }));
  const std::map<std::string, Kept> kept = kept_by_all(meeting, held);
  meeting.end();
  return FullMoments(model, held, options).collect(kept);
}

}  // namespace fsdp::detail
