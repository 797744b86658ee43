// A run in records and in words: what it will do, what it holds, how fast it is.
#pragma once

#include <fsdp/train.h>

#include <optional>
#include <string>
#include <vector>

#include "app/config/settings.h"
#include "trainer/model_spec.h"
#include "trainer/token_data.h"
#include "trainer/watch/records.h"

namespace fsdp::train {

watch::StartRecord describe_start(const World& world, const config::Settings& settings, const ModelSpec& spec,
                                  const TrainModel& model, const std::string& folder, int64_t steps);
// The lines that the user sees before the first step.
std::vector<std::string> start_lines(const watch::StartRecord& start, const World& world,
                                     const config::Settings& settings, const BatchNumbers& numbers,
                                     const std::string& data);
std::string describe_data(const Corpus& corpus, const TokenData& data, int64_t length);
// `averaged`: the average of the weights was evaluated.
std::string describe_evaluation(int64_t step, double loss, const std::optional<double>& best, bool averaged);

watch::MemoryRecord describe_memory(int64_t step, const ShardedModel& model,
                                    const torch::optim::Optimizer& optimizer);
// Bytes of memory on this rank: the largest amount of the device's since the run began, as LibTorch's
// allocator counts it. CPU ranks: the most that the model held in the step, and the optimizer's moments.
int64_t peak_memory(const World& world, const ShardedModel& model, const torch::optim::Optimizer& optimizer);
watch::UnitsRecord describe_units(int64_t step, int64_t steps, const ShardedModel& model);

// Model FLOPs utilization: the part of the devices' peak that `tokens_per_second` needs. Unset: the peak of
// this device in this precision is not known.
std::optional<double> model_flops_utilization(const World& world, const config::Settings& settings,
                                              const ModelSpec& spec, const ShardedModel& model,
                                              double tokens_per_second);

}  // namespace fsdp::train
