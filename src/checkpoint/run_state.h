// The state of a run besides its models and optimizers.
#pragma once

#include <fsdp/checkpoint.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_state.h"
#include "files/json.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Keys in a manifest's `run`.
inline constexpr const char* kRankValues = "rank_values";
inline constexpr const char* kFiltered = "filtered";

// The scaler, the sampler and the program's values that are no tensors. Throws c10::Error for a text that is
// not UTF-8.
Json run_json(const RunState& run);
Json values_json(const std::map<std::string, Value>& values);

// Random generators and the program's tensors, as this rank saves them.
std::vector<Held> held_run(const RunState& run, const Model& model);

// The part of a checkpoint's run that `run` has fields for, checked so that setting it cannot fail.
struct PreparedRun {
  std::vector<Held> holes;  // memory of the tensors below, to be filled
  std::map<std::string, Value> values;
  std::map<std::string, Value> own_values;               // of this rank, if the same number of ranks saved
  std::vector<std::map<std::string, Value>> all_values;  // of every rank that saved, if not
  std::optional<GradScalerState> scaler;
  std::optional<SamplerState> sampler;
  std::optional<std::string> model_config;
  std::optional<uint64_t> seed;                // rank 0's seed; none: generators stay
  at::Tensor cpu_generator, device_generator;  // undefined: to be seeded anew
};
// Throws CheckpointError or c10::Error for values that are damaged or do not fit.
PreparedRun prepare_run(const RunState& run, const Model& model, const Manifest& manifest);
// Called after the holes are filled: throws c10::Error if a generator cannot take its state.
void check_generators(const PreparedRun& prepared, const Model& model);
void set_run(RunState& run, const Model& model, const Manifest& manifest, const PreparedRun& prepared);

}  // namespace fsdp::detail
