// Optimizers for sharded models.
#pragma once

#include <torch/optim/adamw.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

class ShardedModel;
namespace detail {
class StepsInBackward;
}

using AdamWOptions = torch::optim::AdamWOptions;

// AdamW with one fused kernel call per parameter group, on the CPU and CUDA. Parameter groups, learning rate
// schedulers, state and serialisation are those of torch::optim::AdamW; `amsgrad` works too. It updates this
// rank's slices. Complex parameters are not supported.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  // Keeps the moments in the dtype `moments`: bf16 (of fp32 parameters), with stochastic rounding, or the
  // parameters' own. The step is computed in the parameters' dtype. step() throws c10::Error for other dtypes
  // of moments.
  AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions options,
        at::ScalarType moments)
      : torch::optim::AdamW(groups, std::move(options)), moments_(moments) {}
  AdamW(std::vector<at::Tensor> params, AdamWOptions options, at::ScalarType moments)
      : torch::optim::AdamW(std::move(params), std::move(options)), moments_(moments) {}
  AdamW(AdamW&& other) noexcept;
  AdamW& operator=(AdamW&& other) noexcept;

  // Returns before parameters in host memory (Offload::params) are updated; reading one waits for its update.
  torch::Tensor step(LossClosure closure = nullptr) override;
  // clip_grad_norm_(max_norm) and step() at once, for a model whose get_total_norm() is `total_norm`: without
  // a pass over the gradients of host memory. Whether .grad() is clipped afterwards depends on the device.
  // Gradients of parameters that are no slices are not clipped.
  void step_clipped(const at::Tensor& total_norm, double max_norm);
  void save(torch::serialize::OutputArchive& archive) const override;

  // From now on backward of `model` also runs the optimizer: a parameter in host memory is updated as soon as
  // its gradient is complete, while the backward goes on, and gets no .grad(). Needs Offload::params, and all
  // trainable parameters of the model in this optimizer, which then steps for one model only. Not with
  // no_sync(), keep_gathered(), clipping, a GradScaler, check_gradients, gradients below fp32, a penalty over
  // slices or reproducible mode: these throw c10::Error. A backward that fails may have updated some units;
  // that is logged. Lasts until the optimizer is destroyed.
  void step_in_backward(const ShardedModel& model);
  bool steps_in_backward() const { return in_backward_ != nullptr; }
  // The dtype of moments given to the constructor; none: each parameter's own.
  std::optional<at::ScalarType> moments() const { return moments_; }

 private:
  std::optional<at::ScalarType> moments_;
  float factor_ = 1;  // of gradients in host memory, while step_clipped() runs
  std::shared_ptr<detail::StepsInBackward> in_backward_;
};

}  // namespace fsdp
