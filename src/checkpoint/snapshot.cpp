#include "checkpoint/snapshot.h"

#include <set>

#include "checkpoint/members.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/run_state.h"

namespace fsdp::detail {

namespace {

std::vector<Held> saved_ones(std::vector<Holding> holdings) {
  std::vector<Held> held;
  for (Holding& one : holdings)
    if (one.saves) held.push_back(std::move(one.held));
  return held;
}

// Moments are named after parameters, and tensors of parts after parts.
void check_names(const Snapshot& snapshot) {
  std::set<std::string> names;
  const auto check = [&](const std::vector<Held>& all) {
    for (const Held& held : all)
      TORCH_CHECK(names.insert(held.name).second, "fsdp: the checkpoint would have two tensors '", held.name,
                  "'. A parameter may be in one optimizer of the run only; a module may not be called as "
                  "optimizer state ('state') or a value ('value') is");
  };
  check(snapshot.model);
  check(snapshot.state);
}

void append(std::vector<Held>& all, std::vector<Held> more) {
  for (Held& one : more) all.push_back(std::move(one));
}

void add_model(Snapshot& snapshot, const Member& member) {
  const Model& model = *member.model;
  for (Held& held : saved_ones(held_params(model))) {
    held.name = member.prefix + held.name;
    held.live = true;
    snapshot.model.push_back(std::move(held));
  }
  if (model.world.rank() != 0) return;
  for (const auto& [name, tensor] : own_tensors(model))
    snapshot.model.push_back(make_whole(member.prefix + name, tensor));
  for (const auto& [alias, name] : aliases_of(model))
    snapshot.aliases[member.prefix + alias] = member.prefix + name;
}

}  // namespace

Snapshot take_snapshot(const RunState& run, bool in_background) {
  const Model& own = model_of(run.model.engine());
  const bool first = own.world.rank() == 0;
  Snapshot snapshot{.step = run.step, .model = {}, .state = {}, .aliases = {}};
  for (const Member& member : members_of(run)) {
    if (member.brings_model) add_model(snapshot, member);
    if (member.optimizer != nullptr)
      append(
          snapshot.state,
          saved_ones(OptimizerState(*member.model, *member.optimizer, member.format, member.prefix).held()));
    if (first) snapshot.run.merge_patch(member_json(member));
  }
  append(snapshot.state, held_run(run, own));
  if (first) snapshot.run.update(run_json(run));
  check_names(snapshot);
  if (!in_background) return snapshot;
  for (std::vector<Held>* part : {&snapshot.model, &snapshot.state})
    for (Held& held : *part)
      if (!held.live) held.flat = held.flat.cpu().is_same(held.flat) ? held.flat.clone() : held.flat.cpu();
  return snapshot;
}

}  // namespace fsdp::detail
