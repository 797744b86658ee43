#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/zeros.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>
#include <fsdp/world.h>

#include <cmath>

#include "launch/in_call.h"

namespace fsdp {

namespace {

void check_scale(double scale) {
  TORCH_CHECK(std::isfinite(scale) && scale > 0, "fsdp: GradScaler: a scale of ", scale,
              "; it must be positive and finite");
}

Comm make_group(const World& world, const CommOptions& options) {
  const detail::InMeeting call(world, "GradScaler()");
  return Comm::create(world, options);
}

}  // namespace

GradScaler::GradScaler(const World& world, const GradScalerOptions& options)
    : world_(world),
      comm_(make_group(world, options.comm)),
      device_(world.device()),
      options_(options),
      state_{.scale = options.init_scale, .growth_tracker = 0} {
  check_scale(options.init_scale);
  TORCH_CHECK(options.growth_factor > 1.0, "fsdp: GradScaler: growth_factor ", options.growth_factor,
              "; it must be above 1");
  TORCH_CHECK(options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
              "fsdp: GradScaler: backoff_factor ", options.backoff_factor, "; it must be between 0 and 1");
  TORCH_CHECK(options.growth_interval > 0, "fsdp: GradScaler: growth_interval ", options.growth_interval,
              "; it must be positive");
}

// In fp32, since the scaled loss would overflow fp16.
at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss.to(at::promote_types(loss.scalar_type(), at::kFloat)).mul(state_.scale)
                          : loss;
}

// Every rank checks its own slices; the result is shared with all ranks.
bool GradScaler::find_inf(torch::optim::Optimizer& optimizer) {
  const auto* ours = dynamic_cast<const AdamW*>(&optimizer);
  TORCH_CHECK(ours == nullptr || !ours->steps_in_backward(),
              "fsdp: GradScaler with AdamW::step_in_backward(), which has used the scaled gradients already");
  const detail::InMeeting call(world_, "GradScaler::unscale_() or step()");
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device_);
  at::Tensor found = at::zeros({1}, options);
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>> by_type;
  for (const auto& group : optimizer.param_groups())
    for (const auto& param : group.params())
      if (param.grad().defined() && param.numel() > 0)
        by_type[{param.grad().device().type(), param.grad().scalar_type()}].push_back(param.grad());
  for (auto& [type, gradients] : by_type) {
    const auto there = gradients.front().options().dtype(at::kFloat);
    at::Tensor found_there = at::zeros({1}, there);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_there,
                                                   at::full({}, 1.0 / state_.scale, there));
    found.add_(found_there.to(device_));
  }
  comm_.all_reduce(found, ReduceOp::sum, "found_inf").wait(comm_.timeout());
  return found.item<float>() > 0;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  TORCH_CHECK(!step_.contains(&optimizer),
              "fsdp: GradScaler: unscale_() was called for this optimizer already, or its step() was; call "
              "update() at the end of every step");
  step_[&optimizer].found_inf = find_inf(optimizer);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!step_.contains(&optimizer)) unscale_(optimizer);
  Progress& progress = step_.at(&optimizer);
  TORCH_CHECK(!progress.stepped,
              "fsdp: GradScaler: step() was called twice for this optimizer; call update() at the end of "
              "every step");
  progress.stepped = true;
  if (!progress.found_inf) optimizer.step();
  return !progress.found_inf;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check_scale(*new_scale);
    state_.scale = *new_scale;
    step_.clear();
    return;
  }
  TORCH_CHECK(!step_.empty(), "fsdp: GradScaler: update() without a step() or unscale_() before it");
  bool found_inf = false;
  for (const auto& [optimizer, progress] : std::exchange(step_, {}))
    found_inf = found_inf || progress.found_inf;
  if (found_inf) {
    state_ = {.scale = state_.scale * options_.backoff_factor, .growth_tracker = 0};
  } else if (++state_.growth_tracker == options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    state_ = {.scale = std::isfinite(static_cast<float>(grown)) ? grown : state_.scale, .growth_tracker = 0};
  }
}

void GradScaler::load_state_dict(const GradScalerState& state) {
  check_scale(state.scale);
  TORCH_CHECK(state.growth_tracker >= 0, "fsdp: GradScaler: growth_tracker ", state.growth_tracker,
              "; it must not be negative");
  state_ = state;
  step_.clear();
}

}  // namespace fsdp
