// AdamW steps while a backward goes on. See Note [Steps in backward].
#include <fsdp/optim.h>
#include <fsdp/sharded_model.h>

#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "optim/adamw_state.h"
#include "optim/host_adamw.h"
#include "runtime/backward_stepper.h"
#include "runtime/model.h"

namespace fsdp {

namespace detail {

class InBackward final : public BackwardStepper {
 public:
  InBackward(AdamW& optimizer, std::optional<at::ScalarType> moments)
      : optimizer_(&optimizer), moments_(moments) {}

  void use(AdamW& optimizer) { optimizer_ = &optimizer; }

  void update(UnitRegion& region, const at::Tensor& gradient, std::shared_ptr<c10::Event> arrived) override {
    HostAdamW update;
    const at::NoGradGuard no_grad;
    std::map<const c10::TensorImpl*, const UnitParam*> wanted;
    for (const auto& param : region.unit->params)
      if (&param->region() == &region && param->gradient.used_by_any_rank && param->slice.numel() > 0)
        wanted[param->slice.unsafeGetTensorImpl()] = param.get();
    for (auto& group : optimizer_->param_groups()) {
      const auto& options = static_cast<const AdamWOptions&>(group.options());
      for (const at::Tensor& slice : group.params()) {
        if (!wanted.contains(slice.unsafeGetTensorImpl())) continue;
        auto& state = adamw_state(*optimizer_, slice, moments_, options.amsgrad());
        state.step(state.step() + 1);
        update.add(slice, gradient.narrow(0, slice.storage_offset(), slice.numel()), state, options, &region);
      }
    }
    update.promise(arrived);
  }

 private:
  AdamW* optimizer_;
  std::optional<at::ScalarType> moments_;
};

// The link between an optimizer and a model: either may be destroyed first.
class StepsInBackward {
 public:
  StepsInBackward(std::shared_ptr<Engine> engine, const std::shared_ptr<InBackward>& stepper)
      : engine_(std::move(engine)), stepper_(stepper) {
    model_of(engine_).host->stepper = stepper;
  }
  ~StepsInBackward() {
    const Model& model = model_of(engine_);
    try {
      for (const auto& unit : model.units)
        for (const auto& region : unit->regions)  // units of an inner model have that model's promises
          if (region->host) region->host->wait_for_updates();
    } catch (const std::exception& error) {
      log_warn(std::string("an update of AdamW::step_in_backward() failed: ") + error.what());
    }
    if (model.host && model.host->stepper == stepper_.lock()) model.host->stepper.reset();
  }
  StepsInBackward(const StepsInBackward&) = delete;
  StepsInBackward& operator=(const StepsInBackward&) = delete;

  bool is_of(const std::shared_ptr<Engine>& engine) const { return &model_of(engine_) == &model_of(engine); }
  void use(AdamW& optimizer) {
    if (const auto stepper = stepper_.lock()) stepper->use(optimizer);
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::weak_ptr<InBackward> stepper_;
};

namespace {

void check_fits(const Model& model, const AdamW& optimizer) {
  TORCH_CHECK(model.host && model.options.offload.params,
              "fsdp: AdamW::step_in_backward() is for parameters in host memory: set "
              "ShardOptions::offload.params, on a device other than the CPU");
  TORCH_CHECK(!model.mode,
              "fsdp: AdamW::step_in_backward() in reproducible mode, where a step is several "
              "backwards");
  TORCH_CHECK(
      !model.tells_gradients,
      "fsdp: AdamW::step_in_backward() of a model with on_gradient(), which wants the gradients itself");
  TORCH_CHECK(!model.in_no_sync(), "fsdp: AdamW::step_in_backward() inside no_sync(); end that scope first");
  TORCH_CHECK(!model.in_keep_gathered(),
              "fsdp: AdamW::step_in_backward() inside keep_gathered(); end that scope first");
  TORCH_CHECK(!model.options.check_gradients,
              "fsdp: AdamW::step_in_backward() with check_gradients, which promises that parameters are "
              "unchanged when a gradient is not finite; by then some are updated. Turn one of them off");
  std::set<const c10::TensorImpl*> known;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& param : group.params()) known.insert(param.unsafeGetTensorImpl());
  for (const UnitParam* param : model.params) {
    const at::Tensor& slice = param->slice;
    TORCH_CHECK(!slice.requires_grad() || known.contains(slice.unsafeGetTensorImpl()),
                "fsdp: AdamW::step_in_backward(): parameter '", param->names.front(),
                "' is not in the optimizer, and its gradient would be lost; freeze it or add it");
    TORCH_CHECK(!slice.requires_grad() || slice.scalar_type() == at::kFloat,
                "fsdp: AdamW::step_in_backward() is for fp32 parameters; '", param->names.front(), "' is ",
                slice.scalar_type());
    TORCH_CHECK(!slice.requires_grad() || param->region().gradient_type() == at::kFloat,
                "fsdp: AdamW::step_in_backward() is for fp32 gradients; those of '", param->names.front(),
                "' are ", param->region().gradient_type(), ": turn keep_low_precision_grads off");
  }
}

}  // namespace
}  // namespace detail

void AdamW::step_in_backward(const ShardedModel& model) {
  TORCH_CHECK(!in_backward_ || in_backward_->is_of(model.engine()),
              "fsdp: AdamW::step_in_backward() of a second model: this optimizer steps in the backwards of "
              "another one. Make an optimizer for each");
  detail::check_fits(detail::model_of(model.engine()), *this);
  in_backward_ = std::make_shared<detail::StepsInBackward>(
      model.engine(), std::make_shared<detail::InBackward>(*this, moments_));
}

AdamW::AdamW(AdamW&& other) noexcept
    : torch::optim::AdamW(std::move(other)),
      moments_(other.moments_),
      in_backward_(std::move(other.in_backward_)) {
  if (in_backward_) in_backward_->use(*this);
}

AdamW& AdamW::operator=(AdamW&& other) noexcept {
  in_backward_.reset();  // with its promises
  moments_ = other.moments_;
  in_backward_ = std::move(other.in_backward_);
  torch::optim::AdamW::operator=(std::move(other));
  if (in_backward_) in_backward_->use(*this);
  return *this;
}

}  // namespace fsdp
