// Finds the base weights of LoRA adapters: runs with LoRA save only the adapters.
#pragma once

#include <fsdp/checkpoint.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "app/config/settings.h"
#include "trainer/model_spec.h"

namespace fsdp::train {

// The base weights of adapters: a Hugging Face folder or a checkpoint; path "": drawn from the seed.
struct BaseWeights {
  std::string path;
  int64_t seed = 0;
  double mean_square = 0;  // of the weights, by which they are known again; 0: not saved
};

// The start weights that a configuration names.
struct WeightSources {
  std::string init_from = {}, pretrained = {};  // empty: not set
  int64_t seed = 0;
};
WeightSources weight_sources(const config::Settings& settings, const ModelSpec& spec);

// For a new run: loads the base weights into `model`, and the adapters if init_from is the checkpoint of a
// run with LoRA. Returns the base, absolute. Collective. Throws what load() throws.
BaseWeights load_start_of_adapters(const World& world, const ShardedModel& model,
                                   const std::string& model_config, const WeightSources& sources);

// For a saved run: loads the base weights of its adapters; if they were moved, those that the configuration
// names. Collective. Throws CheckpointError if neither is there, if the seed is another one, or if the
// weights found are others than those the adapters were trained on.
void load_base(const World& world, const ShardedModel& model, const BaseWeights& base,
               const WeightSources& sources);

// As a run saves it among its values, and back. saved_base() reads them from a checkpoint's manifest; it
// returns nothing if the checkpoint is not one of adapters alone.
void set_base(std::map<std::string, Value>& values, const BaseWeights& base);
BaseWeights base_of(const std::map<std::string, Value>& values, const std::string& checkpoint);
std::optional<BaseWeights> saved_base(const std::string& checkpoint);

// Compares the adapters of two texts as in RunState::model_config. Throws CheckpointError if they differ.
void check_same_adapters(const std::string& saved, const std::string& wanted, const std::string& checkpoint);

}  // namespace fsdp::train
