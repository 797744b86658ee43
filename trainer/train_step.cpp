#include "trainer/train_step.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace fsdp::train {

// Adds the time from its construction on to `seconds`.
class TrainStep::Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

TrainStep::TrainStep(const World& world, TrainModel& model, torch::optim::Optimizer& optimizer,
                     const ShardOptions& sharding, const StepOptions& options)
    : world_(world), model_(model), optimizer_(optimizer), options_(options), mean_(world, sharding) {
  if (options.scaled) scaler_.emplace(world);
}

StepResult TrainStep::run(const std::vector<Microbatch>& mine, const Votes& vote) {
  StepResult result;
  std::vector<int64_t> counts;
  for (const Microbatch& batch : mine) counts.push_back(batch.counted);
  std::vector<double> weights;
  {
    const Stopwatch waiting(result.times.waiting);
    weights = mean_.weights(counts);
  }
  result.counted = mean_.total();
  std::vector<at::Tensor> losses(mine.size());
  for (size_t i = 0; i < mine.size(); ++i)
    run_microbatch(mine[i], weights[i], i + 1 == mine.size(), losses[i], result);
  if (result.counted > 0) result.skipped = !update(result);
  {
    const Stopwatch optimizer(result.times.optimizer);
    optimizer_.zero_grad();
  }
  sum_losses(losses, mine, vote, result);
  return result;
}

void TrainStep::run_microbatch(const Microbatch& batch, double weight, bool last, at::Tensor& loss,
                               StepResult& result) {
  if (captured_ && weight == 1.0 && batch.counted > 0) {
    const Stopwatch forward(result.times.forward);
    loss = captured_(batch.inputs, batch.targets);
    return;
  }
  std::optional<NoSync> no_sync;
  if (!last && !options_.reproducible) no_sync = model_.model.no_sync();
  at::Tensor weighted;
  {
    const Stopwatch forward(result.times.forward);
    Microbatch counted = batch;
    // The mean over no tokens is 0 / 0. One that weighs nothing makes it finite.
    if (batch.counted == 0) counted.targets = batch.targets.clone().fill_(0);
    const at::Tensor mean = model_.loss(counted);
    loss = mean.detach();
    weighted = weight == 1.0 ? mean : mean * weight;
    if (scaler_) weighted = scaler_->scale(weighted);
  }
  const Stopwatch backward(result.times.backward);
  weighted.backward();
}

// Clips and steps. Returns false, on all ranks, if the gradient is not finite: nothing is updated then.
bool TrainStep::update(StepResult& result) {
  if (scaler_) {
    const Stopwatch optimizer(result.times.optimizer);
    scaler_->unscale_(optimizer_);
  }
  const bool clips = options_.gradient_clipping > 0;
  auto* const clipping = scaler_ ? nullptr : dynamic_cast<AdamW*>(&optimizer_);  // clips as it steps
  at::Tensor norm;
  {
    const Stopwatch waiting(result.times.waiting);
    norm = clips && clipping == nullptr ? model_.model.clip_grad_norm_(options_.gradient_clipping)
                                        : model_.model.get_total_norm();
    result.gradient_norm = norm.item<double>();
  }
  const Stopwatch optimizer(result.times.optimizer);
  bool stepped = std::isfinite(result.gradient_norm);
  if (scaler_) {
    stepped = scaler_->step(optimizer_) && stepped;
    scaler_->update();
  } else if (stepped && clips && clipping != nullptr) {
    clipping->step_clipped(norm, options_.gradient_clipping);
  } else if (stepped) {
    optimizer_.step();
  }
  return stepped;
}

// Losses are added up in the order of microbatches, so that the sum does not depend on the number of ranks.
void TrainStep::sum_losses(const std::vector<at::Tensor>& losses, const std::vector<Microbatch>& mine,
                           const Votes& vote, StepResult& result) {
  const Stopwatch waiting(result.times.waiting);
  at::Tensor parts = torch::zeros({options_.microbatches + 3}, torch::kDouble);
  double* part = parts.mutable_data_ptr<double>();
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto place = static_cast<int64_t>(i) * world_.size() + world_.rank();
    if (mine[i].counted > 0) part[place] = losses[i].item<double>() * static_cast<double>(mine[i].counted);
  }
  double* votes = part + options_.microbatches;
  votes[0] = vote.stop ? 1 : 0;
  votes[1] = vote.requeue ? 1 : 0;
  votes[2] = vote.save ? 1 : 0;
  parts = world_.sum(parts.to(world_.device())).cpu();
  const double* sum = parts.const_data_ptr<double>();
  double total = 0;
  for (int64_t i = 0; i < options_.microbatches; ++i) total += sum[i];
  result.loss = result.counted > 0 ? total / static_cast<double>(result.counted)
                                   : std::numeric_limits<double>::quiet_NaN();
  const double* all = sum + options_.microbatches;
  result.votes = {.stop = all[0] > 0, .requeue = all[1] > 0, .save = all[2] > 0};
}

}  // namespace fsdp::train
