// Learning rate schedules with warm-up: constant, linear, cosine, and warmup-stable-decay.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

enum class Decay : uint8_t {
  constant,  // none
  linear,    // after the warm-up
  cosine,    // after the warm-up, along half a cosine
  wsd,       // constant, then linear at the end (warmup-stable-decay)
};

// Parses "constant", "linear", "cosine", "wsd", in any case. Throws c10::Error for other names, listing
// these.
Decay parse_decay(const std::string& name);

struct ScheduleOptions {
  Decay decay = Decay::cosine;
  int64_t total_steps = 0;   // steps of the run; constant: any
  int64_t warmup_steps = 0;  // the rate grows linearly to its full value in this many steps
  int64_t decay_steps = 0;   // steps of the decay; 0: all after the warm-up, wsd: the last fifth of all
  double final_ratio = 0.1;  // the rate after the decay, as a part of the full one
};

// The part of the full learning rate that step number `step` (from 0) uses. Throws c10::Error for options
// that contradict each other.
double learning_rate_factor(const ScheduleOptions& options, int64_t step);

// Sets the learning rate of every group to its rate at construction, times learning_rate_factor():
//
//   fsdp::LearningRateSchedule schedule(optimizer, {.total_steps = 1000, .warmup_steps = 50});  // of step 0
//   optimizer.step();
//   schedule.step();  // sets that of the next step
//
// RunState::scheduler saves and restores its position. The optimizer must outlive it.
class LearningRateSchedule : public torch::optim::LRScheduler {
 public:
  LearningRateSchedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options);

 protected:
  std::vector<double> get_lrs() override;

 private:
  ScheduleOptions options_;
  std::vector<double> full_;  // learning rates, by group
};

}  // namespace fsdp
