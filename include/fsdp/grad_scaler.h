// Loss scaling for fp16, with one decision for all ranks.
#pragma once

#include <fsdp/comm.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <optional>

namespace fsdp {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;      // of the scale, after `growth_interval` good steps in a row
  double backoff_factor = 0.5;     // of the scale, after a step that was skipped
  int64_t growth_interval = 2000;  // steps
  bool enabled = true;             // false: nothing is scaled and no step is skipped
  CommOptions comm = {};           // as in ShardOptions
};

// What a run needs to go on: the same on every rank.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;  // good steps since the scale last changed
};

// Scales the loss so that small fp16 gradients do not vanish, and skips the step on every rank when a
// gradient of any rank is infinite or NaN:
//
//   scaler.scale(model(x, y)).backward();
//   scaler.unscale_(optimizer);            // only where gradients are looked at before the step
//   model.clip_grad_norm_(1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// The optimizer is one over model.parameters(). Threads: one. step(), and unscale_() where it is called, are
// collective and wait for the device.
class GradScaler {
 public:
  // Collective. Throws c10::Error for factors that make no sense.
  explicit GradScaler(const World& world, const GradScalerOptions& options = {});

  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the optimizer's gradients by the scale, in place, and looks for what is not finite. Once a step.
  void unscale_(torch::optim::Optimizer& optimizer);
  // optimizer.step(), unless a gradient of some rank was not finite: then false, on every rank.
  bool step(torch::optim::Optimizer& optimizer);
  // Ends the step: the scale grows or shrinks; or it is set to `new_scale`.
  void update(std::optional<double> new_scale = {});

  bool is_enabled() const { return options_.enabled; }
  double get_scale() const { return options_.enabled ? state_.scale : 1.0; }
  const GradScalerState& state_dict() const { return state_; }
  void load_state_dict(const GradScalerState& state);

 private:
  struct Progress {
    bool found_inf = false;
    bool stepped = false;
  };
  bool find_inf(torch::optim::Optimizer& optimizer);

  Comm comm_;
  at::Device device_;
  GradScalerOptions options_;
  GradScalerState state_;
  std::map<const torch::optim::Optimizer*, Progress> step_;  // optimizers unscaled since update()
};

}  // namespace fsdp
