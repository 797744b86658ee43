// Evaluation: the mean loss over a fixed part of the validation data.
#pragma once

#include <fsdp/train.h>

#include <memory>

#include "trainer/data/dataset.h"

namespace fsdp::train {

// The first samples of a dataset, in microbatches. The same on any number of ranks: microbatch i runs on rank
// i mod W, and losses are added up in that order.
class EvalData : public TrainData {
 public:
  // `batches`: number of global batches at most; 0: all samples. Without samples for one microbatch, the
  // microbatch is smaller.
  EvalData(const World& world, std::shared_ptr<const data::Dataset> dataset, const BatchNumbers& numbers,
           int64_t batches);

  // Step i: this rank's i-th microbatch. One that is there only so that every rank makes as many counts 0.
  std::vector<Microbatch> batch(int64_t step) override;
  int64_t steps_per_epoch() const override { return (microbatches_ + ranks_ - 1) / ranks_; }

 private:
  std::shared_ptr<const data::Dataset> dataset_;
  int64_t rank_, ranks_;
  int64_t samples_ = 0, rows_ = 1;  // samples per microbatch
  int64_t microbatches_ = 0;
  c10::Device device_;
};

struct EvalResult {
  double loss = 0;
  int64_t counted = 0;
};

// Without gradients and in evaluation mode; the model's mode is restored. Collective.
EvalResult evaluate(const World& world, TrainModel& model, TrainData& data);

}  // namespace fsdp::train
