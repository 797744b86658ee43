// Exponential moving averages of a sharded model's parameters.
#pragma once

#include <fsdp/sharded_model.h>

namespace fsdp {

// Moves `average` towards `model`: average = decay * average + (1 - decay) * model, for every parameter.
// Buffers and integers are copied. `average` is a model of its own, sharded over the same ranks, whose
// parameters have the same names and shapes; make it in fp32 where `model` is in bf16. It evaluates,
// generates and is saved like any other model:
//
//   auto average = fsdp::fully_shard(world, make_net(), options);
//   fsdp::update_average(average, model, 0.0);                        // starts as a copy
//   ...
//   optimizer.step();
//   fsdp::update_average(average, model, 0.999);
//   fsdp::RunState run{.model = model, .optimizer = &optimizer, .parts = {{"average", {.model = average}}}};
//
// Call it between steps, on every rank. Communicates nothing: each rank updates its shards. Throws c10::Error
// if the models differ in names or in how they are sharded, or if `decay` is not in [0, 1).
void update_average(const ShardedModel& average, const ShardedModel& model, double decay);

}  // namespace fsdp
