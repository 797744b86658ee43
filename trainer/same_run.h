// Checks the facts that must be the same on all ranks of a run, and before and after a resume.
#pragma once

#include <fsdp/sharded_model.h>
#include <fsdp/world.h>

#include <string>

#include "app/config/settings.h"

namespace fsdp::train {

// Compares what ranks were started with: a stale config file, or another variable, on one machine would train
// another model there. `data`: facts about the training data. Collective. Throws data::DataError on all ranks,
// naming the first key that differs and a rank.
void check_same_settings(const World& world, const config::Settings& settings);
void check_same_data(const World& world, const std::string& data);

// Compares two texts as in RunState::model_config, except for dropout. Throws CheckpointError with the first
// key that differs: weights of the same shapes may belong to another model.
void check_same_model(const std::string& saved, const std::string& wanted, const std::string& checkpoint);

// The mean of the squares of all parameters that are no adapters: tells whether weights are those of before.
// Collective.
double mean_square_of_base(const World& world, const ShardedModel& model);

}  // namespace fsdp::train
