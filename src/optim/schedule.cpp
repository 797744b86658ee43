#include <c10/util/Exception.h>
#include <fsdp/schedule.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>

namespace fsdp {

namespace {

void check(const ScheduleOptions& options) {
  const bool decays = options.decay != Decay::constant;
  TORCH_CHECK(!decays || options.total_steps > 0, "fsdp: ScheduleOptions::total_steps ", options.total_steps,
              "; a learning rate that decays needs the number of steps");
  TORCH_CHECK(options.warmup_steps >= 0 && options.decay_steps >= 0,
              "fsdp: ScheduleOptions with warmup_steps ", options.warmup_steps, " and decay_steps ",
              options.decay_steps, "; they are numbers of steps");
  TORCH_CHECK(!decays || options.warmup_steps + options.decay_steps <= options.total_steps,
              "fsdp: ScheduleOptions with warmup_steps ", options.warmup_steps, " and decay_steps ",
              options.decay_steps, " do not fit into total_steps ", options.total_steps);
  TORCH_CHECK(options.final_ratio >= 0, "fsdp: ScheduleOptions::final_ratio ", options.final_ratio,
              "; it is at least 0");
}

struct Falling {
  int64_t first = 0, steps = 0;
};

// The steps over which the rate falls.
Falling falling(const ScheduleOptions& options) {
  const int64_t after_warmup = options.total_steps - options.warmup_steps;
  if (options.decay != Decay::wsd)
    return {options.warmup_steps, options.decay_steps > 0 ? options.decay_steps : after_warmup};
  const int64_t fifth = std::min(after_warmup, std::max<int64_t>(1, options.total_steps / 5));
  const int64_t steps = options.decay_steps > 0 ? options.decay_steps : fifth;
  return {options.total_steps - steps, steps};
}

}  // namespace

Decay parse_decay(const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "constant") return Decay::constant;
  if (lower == "linear") return Decay::linear;
  if (lower == "cosine") return Decay::cosine;
  if (lower == "wsd") return Decay::wsd;
  TORCH_CHECK(false, "fsdp: '", name,
              "' is no learning rate schedule; expected constant, linear, cosine or wsd");
}

double learning_rate_factor(const ScheduleOptions& options, int64_t step) {
  check(options);
  if (step < options.warmup_steps)
    return static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  if (options.decay == Decay::constant) return 1.0;
  const Falling range = falling(options);
  const int64_t fallen = std::clamp<int64_t>(step - range.first, 0, range.steps);
  const double progress =
      range.steps == 0 ? 1.0 : static_cast<double>(fallen) / static_cast<double>(range.steps);
  const double left =
      options.decay == Decay::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return options.final_ratio + (1.0 - options.final_ratio) * left;
}

LearningRateSchedule::LearningRateSchedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options)
    : torch::optim::LRScheduler(optimizer), options_(options), full_(get_current_lrs()) {
  step();
}

std::vector<double> LearningRateSchedule::get_lrs() {
  const double factor = learning_rate_factor(options_, static_cast<int64_t>(step_count_));
  std::vector<double> rates = full_;
  for (double& rate : rates) rate *= factor;
  return rates;
}

}  // namespace fsdp
