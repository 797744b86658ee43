// What a run has besides tensors of its model and optimizer.
#pragma once

#include <fsdp/checkpoint.h>

#include <vector>

#include "checkpoint/model_state.h"
#include "files/json.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Positions, scales and values of the user's that are not tensors.
Json run_json(const RunState& run, const Model& model);
// Sets them. What the run has no place for, or the checkpoint has not, is left.
void set_run(RunState& run, Model& model, const Json& json);

// Random generators and tensors of the user's, as this rank saves them.
std::vector<Held> held_run(const RunState& run, const Model& model);
// Memory for those the checkpoint has: to be filled, then set.
struct RunTensors {
  std::vector<Held> holes;
  std::map<std::string, at::Tensor> values;
  at::Tensor cpu_generator, device_generator;  // undefined: to be seeded anew
};
RunTensors prepare_run(const RunState& run, const Model& model, const Manifest& manifest);
void set_run_tensors(RunState& run, const Model& model, const Manifest& manifest, const RunTensors& tensors);

}  // namespace fsdp::detail
