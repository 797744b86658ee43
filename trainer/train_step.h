// One step of training: microbatches forward and backward, clipping, the optimizer.
#pragma once

#include <fsdp/fsdp.h>
#include <fsdp/token_mean.h>
#include <fsdp/train.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/watch/records.h"

namespace fsdp::train {

struct StepOptions {
  double gradient_clipping = 0;  // largest norm; 0: no clipping
  int64_t microbatches = 1;      // of a step, over all ranks
  bool reproducible = false;     // every backward is a microbatch of the mode
  bool scaled = false;           // fp16: a GradScaler
};

// A rank's requests after a step. All ranks follow a request that any rank has.
struct Votes {
  bool stop = false;
  bool requeue = false;  // with stop: the run is to be started again
  bool save = false;
};

struct StepResult {
  double loss = 0;  // mean over the counted items of all ranks; NaN: none counts, and nothing was updated
  double gradient_norm = 0;
  int64_t counted = 0;
  bool skipped = false;  // the gradient or the loss was not finite: nothing was updated
  Votes votes;           // of all ranks
  watch::StepTimes times;
};

// Owns nothing but the scaler. All ranks take the same decisions. Threads: one at a time.
class TrainStep {
 public:
  TrainStep(const World& world, TrainModel& model, torch::optim::Optimizer& optimizer,
            const ShardOptions& sharding, const StepOptions& options);

  // Runs the step on this rank's microbatches. Collective.
  StepResult run(const std::vector<Microbatch>& mine, const Votes& vote);

  // `step` runs forward and backward of a microbatch at once and returns the detached loss: see
  // fsdp::capture(). It serves for steps of one microbatch, all of whose tokens count alike.
  using Captured = std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)>;
  void capture(Captured step) { captured_ = std::move(step); }

  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

 private:
  class Stopwatch;

  void run_microbatch(const Microbatch& batch, double weight, bool last, at::Tensor& loss,
                      StepResult& result);
  bool update(StepResult& result);
  void sum_losses(const std::vector<at::Tensor>& losses, const std::vector<Microbatch>& mine,
                  const Votes& vote, StepResult& result);

  World world_;
  TrainModel& model_;
  torch::optim::Optimizer& optimizer_;
  StepOptions options_;
  TokenMean mean_;
  std::optional<GradScaler> scaler_;
  Captured captured_;
};

}  // namespace fsdp::train
