#include "trainer/evaluation.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace fsdp::train {

EvalData::EvalData(const World& world, std::shared_ptr<const data::Dataset> dataset,
                   const BatchNumbers& numbers, int64_t batches)
    : dataset_(std::move(dataset)), rank_(world.rank()), ranks_(world.size()), device_(world.device()) {
  const auto samples = static_cast<int64_t>(dataset_->samples());
  rows_ = std::min(numbers.batch_size, samples);
  samples_ = samples;
  microbatches_ = (samples + rows_ - 1) / rows_;
  if (batches > 0) microbatches_ = std::min(microbatches_, batches * numbers.microbatches);
}

std::vector<Microbatch> EvalData::batch(int64_t step) {
  const int64_t number = step * ranks_ + rank_;
  const bool counts = number < microbatches_;
  const int64_t first = counts ? number * rows_ : 0;
  at::Tensor inputs = torch::empty({rows_, dataset_->length()}, torch::kLong);
  at::Tensor targets = torch::empty_like(inputs);
  const auto row = [](at::Tensor& all, int64_t i) {
    const at::Tensor one = all[i];
    return std::span<int64_t>(one.data_ptr<int64_t>(), static_cast<size_t>(one.numel()));
  };
  // The last microbatch may have fewer sequences: rows that fill it do not count.
  for (int64_t i = 0; i < rows_; ++i) {
    const int64_t sample = std::min(first + i, samples_ - 1);
    dataset_->read(static_cast<uint64_t>(sample), row(inputs, i), row(targets, i));
    if (first + i >= samples_) targets[i].fill_(data::kIgnoredTarget);
  }
  const int64_t counted = counts ? targets.ne(data::kIgnoredTarget).sum().item<int64_t>() : 0;
  return {{.inputs = inputs.to(device_), .targets = targets.to(device_), .counted = counted}};
}

EvalResult evaluate(const World& world, TrainModel& model, TrainData& data) {
  const torch::NoGradGuard no_grad;
  const bool training = model.model.is_training();
  model.model.eval();
  const int64_t steps = data.steps_per_epoch();
  at::Tensor sums = torch::zeros({2, steps * world.size()}, torch::kDouble);  // losses, counts
  for (int64_t step = 0; step < steps; ++step)
    for (Microbatch& batch : data.batch(step)) {
      if (batch.counted == 0) batch.targets = batch.targets.clone().fill_(0);
      const double loss = model.loss(batch).item<double>();
      const int64_t place = step * world.size() + world.rank();
      const auto count = static_cast<double>(batch.counted);
      if (batch.counted > 0) sums[0][place] = loss * count;
      sums[1][place] = count;
    }
  model.model.train(training);
  sums = world.sum(sums.to(world.device())).cpu();
  EvalResult result;
  double total = 0;
  const double* losses = sums.const_data_ptr<double>();
  for (int64_t i = 0; i < sums.size(1); ++i) total += losses[i];
  result.counted = static_cast<int64_t>(sums[1].sum().item<double>());
  result.loss = total / static_cast<double>(result.counted);
  return result;
}

}  // namespace fsdp::train
