// Loss scaling for fp16: all ranks skip a step, or none does.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/world.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <optional>

namespace fsdp {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;      // multiplies the scale after `growth_interval` good steps in a row
  double backoff_factor = 0.5;     // multiplies the scale after a skipped step
  int64_t growth_interval = 2000;  // in steps
  bool enabled = true;             // false: nothing is scaled and no step is skipped
  CommOptions comm = {};           // as in ShardOptions
};

// The state to save with a run; the same on every rank.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;  // good steps since the scale last changed
};

// Scales the loss so that small fp16 gradients do not underflow, and skips the step on every rank if a
// gradient of any rank is infinite or NaN, as torch.amp.GradScaler does on a single rank:
//
//   scaler.scale(model(x, y)).backward();
//   scaler.unscale_(optimizer);            // only if gradients are read before the step
//   model.clip_grad_norm_(1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// The optimizer is over model.parameters(). Threads: one at a time. step() and unscale_() are collective and
// wait for the device; they throw CommError as collectives do, and c10::Error if called in the wrong order.
class GradScaler {
 public:
  // Collective: it creates a group of its own. Throws c10::Error for factors out of range.
  explicit GradScaler(const World& world, const GradScalerOptions& options = {});

  // The loss times the scale, in fp32 or wider.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the optimizer's gradients by the scale, in place, and notes whether all are finite. Call it at
  // most once per step.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Runs optimizer.step() and returns true; if a gradient on any rank is not finite, returns false instead.
  bool step(torch::optim::Optimizer& optimizer);
  // Ends the step: grows or shrinks the scale, or sets it to `new_scale`.
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

  World world_;
  Comm comm_;
  at::Device device_;
  GradScalerOptions options_;
  GradScalerState state_;
  std::map<const torch::optim::Optimizer*, Progress> step_;  // optimizers unscaled since update()
};

}  // namespace fsdp
