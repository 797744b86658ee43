// Checks the facts that must be the same on all ranks of a run, and before and after a resume.
#pragma once

#include <fsdp/sharded_model.h>
#include <fsdp/world.h>

#include <string>

#include "app/config/settings.h"
#include "trainer/data/error.h"

namespace fsdp::train {

// Another rank was started with another configuration or other data: that rank's failure is the cause.
class OtherRankDiffers : public data::DataError {
 public:
  explicit OtherRankDiffers(int rank);
  int rank() const { return rank_; }

 private:
  int rank_;
};

// Compares what ranks were started with: a stale config file, or another variable, on one machine would train
// another model there. `data`: facts about the training data. Collective. On a rank that
// differs from rank 0 throws data::DataError with the first key that differs, on the others OtherRankDiffers.
void check_same_settings(const World& world, const config::Settings& settings);
void check_same_data(const World& world, const std::string& data);

// Compares two texts as in RunState::model_config, except for dropout. Throws CheckpointError with the first
// key that differs: weights of the same shapes may belong to another model.
void check_same_model(const std::string& saved, const std::string& wanted, const std::string& checkpoint);

// The mean of the squares of all parameters that are no adapters: tells whether weights are those of before.
// Collective.
double mean_square_of_base(const World& world, const ShardedModel& model);

}  // namespace fsdp::train
