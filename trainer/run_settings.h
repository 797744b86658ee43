// Turns a resolved configuration into the library's options, the model, the optimizer and the schedule.
#pragma once

#include <fsdp/fsdp.h>
#include <fsdp/schedule.h>

#include <memory>

#include "app/config/batch.h"
#include "app/config/settings.h"
#include "trainer/model_spec.h"

namespace fsdp::train {

using config::Settings;

ModelSpec model_spec(const Settings& settings);
ShardOptions shard_options(const Settings& settings, const config::BatchPlan& batch);
// The options of a model that only follows another one: an average of its parameters in fp32.
ShardOptions average_options(const ShardOptions& options);

// On this number of ranks. Throws c10::Error with the values that would fit if the global batch does not.
config::BatchPlan batch_plan(const Settings& settings, int ranks);

// Weights and embeddings decay, biases and norms do not.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Settings& settings, const ShardedModel& model);
ScheduleOptions schedule_options(const Settings& settings, int64_t steps);

}  // namespace fsdp::train
