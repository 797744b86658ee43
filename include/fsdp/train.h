// The trainer behind `fsdp train`, for C++ programs: a run from a config file, optionally with the program's
// own model or data. Link fsdp::train.
#pragma once

#include <fsdp/error.h>
#include <fsdp/options.h>
#include <fsdp/sharded_model.h>
#include <fsdp/world.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Training stopped because losses or gradients were not finite for too many steps in a row.
class NumericError : public Error {
 public:
  using Error::Error;
};

// One microbatch of this rank: what one forward and backward take.
struct Microbatch {
  at::Tensor inputs;    // language models: tokens [batch, time]
  at::Tensor targets;   // language models: the next tokens [batch, time]; -100 is not counted
  int64_t counted = 0;  // items in the mean loss: tokens, or samples
};

// The numbers of a global batch. `microbatches` = global_batch_size / batch_size over all ranks; microbatch i
// runs on rank i mod W, as its (i / W)-th of the step.
struct BatchNumbers {
  int64_t batch_size = 1;  // samples per microbatch
  int64_t accumulation = 1;
  int64_t global_batch_size = 1;
  int64_t microbatches = 1;
};

// The data of a run. The batch of a step must depend on the step's number only, so that a resumed run goes on
// with the right one. Called on one thread.
class TrainData {
 public:
  virtual ~TrainData() = default;
  // This rank's `accumulation` microbatches of step `step` (from 0), on any device.
  virtual std::vector<Microbatch> batch(int64_t step) = 0;
  virtual int64_t steps_per_epoch() const = 0;  // 0: unknown
};

// A model to train.
struct TrainModel {
  ShardedModel model;
  // The mean loss over the counted items of a microbatch, with a graph.
  std::function<at::Tensor(const Microbatch& batch)> loss;
  std::string model_config = {};  // as RunState::model_config
};

// The metrics of a run after a step.
struct TrainMetrics {
  int64_t step = 0;
  double loss = 0;  // mean over the items of the global batch
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  double seconds = 0;
  int64_t tokens = 0;               // counted items, of all ranks, since the run began
  std::optional<double> eval_loss;  // of the last evaluation
  bool skipped = false;             // the step was not applied: its gradient was not finite
};

// Replaces parts of the trainer. Empty: what the config says.
struct TrainHooks {
  // Makes the model and shards it with `options`. Called a second time, with other options, for the average
  // of the weights (training.ema_decay).
  std::function<TrainModel(const World& world, const ShardOptions& options)> model = {};
  std::function<std::unique_ptr<TrainData>(const World& world, const BatchNumbers& numbers)> data = {};
  std::function<std::unique_ptr<TrainData>(const World& world, const BatchNumbers& numbers)> eval_data = {};
  std::function<void(const TrainMetrics& metrics)> on_step = {};  // on every rank
};

// The same choices as the flags of `fsdp train`. But the config file overrides `devices`, `model_config_key`
// and `precision`. Keys in `set` ("training.max_steps=100") override the file.
struct TrainRequest {
  std::string config = {};            // a YAML file; empty: config.yaml in this folder, else the one built in
  std::string model_config_key = {};  // a model_config_* of the file
  std::string stage = {};             // empty: the first
  std::optional<int> devices = {};
  std::string precision = {};
  std::string run = {};  // the run's folder; empty: runs/<config>/<stage>
  bool resume = false;   // go on with the run in that folder; false: refuse it
  std::vector<std::string> set = {};
  std::string mode = "production";  // or "smoke": a few steps, nothing kept
};

struct TrainResult {
  ShardedModel model;
  TrainMetrics metrics;     // of the last step
  std::string run;          // its folder; empty: nothing was kept
  std::string checkpoint;   // the last one; empty: none
  std::string stop_reason;  // "all steps done", "early stop", "SIGTERM", ...
  bool requeue = false;     // SIGTERM or SIGUSR1 ended it early: `fsdp train` then exits with 75
};

// Trains as `fsdp train` does, with the ranks of `world`: writes metrics, checkpoints and config.yaml to the
// run's folder, and shows progress on rank 0's stderr. SIGTERM, SIGUSR1 or SIGINT once: finishes the step,
// saves and returns. Collective. Throws c10::Error for a config that is refused (with all problems),
// NumericError after too many steps in a row that are not finite, and what save(), load() and collectives
// throw.
TrainResult train_production_mode(const World& world, const TrainRequest& request,
                                  const TrainHooks& hooks = {});

}  // namespace fsdp
