#include "checkpoint/snapshot.h"

#include <fsdp/optim.h>

#include <set>

#include "checkpoint/optimizer_state.h"
#include "checkpoint/run_state.h"

namespace fsdp::detail {

namespace {

std::vector<Held> saved_ones(std::vector<Holding> holdings, bool live) {
  std::vector<Held> held;
  for (Holding& one : holdings) {
    if (!one.saves) continue;
    one.held.live = live;
    held.push_back(std::move(one.held));
  }
  return held;
}

// Moments are named after parameters: a parameter of such a name would be taken for one.
void check_names(const Snapshot& snapshot) {
  std::set<std::string> names;
  for (const Held& held : snapshot.model) names.insert(held.name);
  for (const Held& held : snapshot.state)
    TORCH_CHECK(!names.contains(held.name), "fsdp: the checkpoint would have two tensors '", held.name,
                "': one of the model, one of the optimizer or the run. Rename the module it is in");
}

void append(std::vector<Held>& all, std::vector<Held> more) {
  for (Held& one : more) all.push_back(std::move(one));
}

}  // namespace

Snapshot take_snapshot(const RunState& run, const Model& model, bool in_background) {
  const bool first = model.world.rank() == 0;
  Snapshot snapshot{
      .step = run.step, .model = saved_ones(held_params(model), true), .state = {}, .aliases = {}};
  if (first)
    for (const auto& [name, tensor] : own_tensors(model)) snapshot.model.push_back(make_whole(name, tensor));
  if (run.optimizer != nullptr) {
    const OptimizerState optimizer(model, *run.optimizer, run.optimizer_format);
    const bool ours = dynamic_cast<const AdamW*>(run.optimizer) != nullptr;
    append(snapshot.state, saved_ones(optimizer.held(), ours));
    if (first) snapshot.run["optimizer"] = {{"type", optimizer.type()}, {"groups", optimizer.groups()}};
  }
  append(snapshot.state, held_run(run, model));
  if (first) {
    snapshot.aliases = aliases_of(model);
    snapshot.run.update(run_json(run, model));
  }
  check_names(snapshot);
  if (!in_background) return snapshot;
  for (std::vector<Held>* part : {&snapshot.model, &snapshot.state})
    for (Held& held : *part)
      if (!held.live) held.flat = held.flat.cpu().is_same(held.flat) ? held.flat.clone() : held.flat.cpu();
  return snapshot;
}

}  // namespace fsdp::detail
