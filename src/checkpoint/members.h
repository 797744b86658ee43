// The models and optimizers of a run: its own, and those of RunState::parts.
#pragma once

#include <fsdp/checkpoint.h>

#include <string>
#include <vector>

#include "files/json.h"
#include "files/manifest.h"
#include "runtime/model.h"

namespace fsdp::detail {

// Note [Parts of a run]
// The run's own model and optimizer have the same names as in a checkpoint of one model. Tensors of another
// model, the part `critic`, have its name in front: `critic.up.weight`, and moments
// `state.critic.up.weight.exp_avg`, as if all models were children of one module. So all code that goes by
// names (selecting, renaming, filtering, moments, groups) knows nothing of parts. A part without a model is
// another optimizer over the run's own model: its moments are named after that model's parameters. All values
// of a part that are no tensors are in run["parts"][name], with the same keys as the run's own in run.
struct Member {
  std::string name = {};     // name of the part; empty: the run's own
  Model* model = nullptr;    // the model that its optimizer is over
  bool brings_model = true;  // false: `model` is the run's own
  std::string prefix = {};   // prefix of its tensors' names
  torch::optim::Optimizer* optimizer = nullptr;
  torch::optim::LRScheduler* scheduler = nullptr;
  const OptimizerFormat* format = nullptr;
};

// The run's own member is the first. Throws c10::Error for a name that a part cannot have.
std::vector<Member> members_of(const RunState& run);

// The models of a run, each once.
std::vector<Model*> models_of(const RunState& run);

// All values of a member that are no tensors: optimizer groups, a scheduler's steps, the step of reproducible
// mode.
Json member_json(const Member& member);
// The JSON saved for `member`; null if the checkpoint has no such part.
const Json* saved_json(const Manifest& manifest, const Member& member);
// True if a tensor belongs to a model that is a part of the checkpoint and none of these members.
bool is_of_absent_part(const Manifest& manifest, const std::vector<Member>& members, const std::string& name);

// Positions of a member that are no tensors, checked, so that setting them cannot fail.
struct Positions {
  std::optional<unsigned> scheduler_steps;
  std::optional<int64_t> reproducible_step;
};
Positions positions_of(const Member& member, const Json& saved);
void set_positions(const Member& member, const Positions& positions);

}  // namespace fsdp::detail
