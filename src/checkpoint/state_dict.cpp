#include <fsdp/error.h>
#include <fsdp/state_dict.h>

#include <set>

#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/model_state.h"
#include "checkpoint/state_entries.h"
#include "launch/in_call.h"
#include "watch/quiet.h"

namespace fsdp {

namespace detail {

namespace {

bool is_here(const Model& model, const StateDictOptions& options) {
  return options.type != StateDictType::full || !options.rank0_only || model.world.rank() == 0;
}

using Visit = std::function<void(const UnitParam&, const at::Tensor& whole)>;

void visit_params(Model& model, const StateDictOptions& options, const Visit& visit) {
  const Quiet quiet;
  for (const auto& unit : model.units) {
    for (const auto& region : unit->regions) {
      const at::Tensor whole = gather_master(model, *region, options.rank0_only);
      if (!is_here(model, options)) continue;
      for (const auto& param : unit->params)
        if (&param->region() == region.get()) visit(*param, param->view_of(whole));
    }
    unit->claim_shards();
  }
}

// The numbers are needed because units may share a name.
std::string local_name(const Model& model, size_t unit, size_t region) {
  return "flat." + std::to_string(unit) + "." + std::to_string(region) + "." + model.units[unit]->name();
}

}  // namespace

}  // namespace detail

using detail::Model;
using detail::model_of;

void visit_state_dict(const ShardedModel& model, const StateDictOptions& options,
                      const std::function<void(const std::string& name, const at::Tensor& whole)>& visit) {
  TORCH_CHECK(options.type == StateDictType::full, "fsdp: visit_state_dict() gives whole tensors only");
  Model& own = model_of(model.engine());
  own.check_between_steps("a state dict");
  detail::visit_params(own, options, [&](const detail::UnitParam& param, const at::Tensor& whole) {
    for (const std::string& name : param.names) visit(name, options.offload ? whole.cpu() : whole);
  });
  if (!detail::is_here(own, options)) return;
  for (const auto& [name, tensor] : detail::own_tensors(own))
    visit(name, options.offload ? tensor.detach().cpu() : tensor.detach());
}

StateDict state_dict(const ShardedModel& model, const StateDictOptions& options) {
  Model& own = model_of(model.engine());
  own.check_between_steps("a state dict");
  const detail::InCall call(own.world, "state_dict()");
  StateDict state("tensor");
  const detail::Quiet quiet;
  if (options.type == StateDictType::full)
    detail::visit_params(own, options, [&](const detail::UnitParam& param, const at::Tensor& whole) {
      const StateEntry entry = detail::whole_entry(detail::kept(whole, options));
      for (const std::string& name : param.names) state.insert(name, entry);
    });
  if (options.type == StateDictType::sharded)
    for (const detail::UnitParam* param : own.params) {
      const StateEntry entry = detail::box_entry(
          detail::held_of(own, *param, param->names.front(), param->slice.detach()), options);
      for (const std::string& name : param->names) state.insert(name, entry);
    }
  if (options.type == StateDictType::local)
    for (size_t u = 0; u < own.units.size(); ++u)
      for (size_t i = 0; i < own.units[u]->regions.size(); ++i)
        state.insert(detail::local_name(own, u, i),
                     detail::flat_entry(own.units[u]->regions[i]->shard, options));
  if (detail::is_here(own, options))
    for (const auto& [name, tensor] : detail::own_tensors(own))
      state.insert(name, detail::whole_entry(detail::kept(tensor, options)));
  return state;
}

namespace {

// The model's tensors by their names in a state dict.
struct Targets {
  std::vector<detail::Held> held;                           // parameters, or flat shards
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // each rank's own
  std::set<std::string> known;
  bool flat = false;
};

Targets targets_of(const Model& model, const StateDict& state) {
  Targets targets;
  targets.flat = !model.units.empty() && state.contains(detail::local_name(model, 0, 0));
  for (size_t u = 0; u < model.units.size() && targets.flat; ++u)
    for (size_t i = 0; i < model.units[u]->regions.size(); ++i) {
      const at::Tensor& shard = model.units[u]->regions[i]->shard;
      targets.held.push_back(
          detail::make_held(detail::local_name(model, u, i), {shard.numel()}, {1}, 0, shard));
    }
  for (const detail::UnitParam* param : model.params) {
    if (targets.flat) break;
    std::string name = param->names.front();
    for (const std::string& one : param->names)
      if (!state.contains(name) && state.contains(one)) name = one;
    targets.held.push_back(held_of(model, *param, name, param->slice.detach()));
    targets.known.insert(param->names.begin(), param->names.end());
  }
  for (const detail::Held& held : targets.held) targets.known.insert(held.name);
  targets.buffers = detail::own_tensors(model);
  for (const auto& [name, tensor] : targets.buffers) targets.known.insert(name);
  return targets;
}

std::string complaints(const Targets& targets, const StateDict& state) {
  std::string words;
  const auto look = [&](const detail::Held& held, bool flat) {
    const StateEntry* entry = state.find(held.name);
    const std::string wrong =
        entry == nullptr ? "'" + held.name + "' is missing" : detail::mismatch(held, *entry, flat);
    if (!wrong.empty()) words += "\n  " + wrong;
  };
  for (const detail::Held& held : targets.held) look(held, targets.flat);
  for (const auto& [name, tensor] : targets.buffers) look(detail::make_whole(name, tensor), false);
  for (const auto& item : state)
    if (!targets.known.contains(item.key())) words += "\n  '" + item.key() + "' is unexpected";
  return words;
}

}  // namespace

void load_state_dict(const ShardedModel& model, const StateDict& state, bool strict) {
  const at::NoGradGuard no_grad;
  Model& own = model_of(model.engine());
  own.check_between_steps("a state dict");
  Targets targets;
  detail::Meeting meeting(own.world, "loading a state dict", std::chrono::minutes(10));
  meeting.agree(detail::error_of([&] {
    targets = targets_of(own, state);
    const std::string wrong = complaints(targets, state);
    if (strict && !wrong.empty())
      throw CheckpointError("the state dict does not fit the model; nothing was loaded:" + wrong);
  }));
  meeting.end();
  detail::announce_writes(own);
  for (const detail::Held& held : targets.held)
    if (const StateEntry* entry = state.find(held.name);
        entry != nullptr && detail::mismatch(held, *entry, targets.flat).empty()) {
      if (targets.flat)
        detail::fill_flat(held, *entry);
      else
        detail::fill(held, *entry);
    }
  for (const auto& [name, tensor] : targets.buffers)
    if (const StateEntry* entry = state.find(name);
        entry != nullptr && detail::mismatch(detail::make_whole(name, tensor), *entry, false).empty())
      detail::fill_whole(tensor, *entry);
}

}  // namespace fsdp
