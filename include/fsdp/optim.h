// Optimizers for sharded models.
#pragma once

#include <torch/optim/adamw.h>

#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

using AdamWOptions = torch::optim::AdamWOptions;

// AdamW with one fused kernel call per parameter group, on the CPU and CUDA. Parameter groups, learning rate
// schedulers, state and serialisation are those of torch::optim::AdamW; `amsgrad` works too. It updates this
// rank's slices. Complex parameters are not supported.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  // Keeps the moments in the dtype `moments`: bf16 (of fp32 parameters), with stochastic rounding, or the
  // parameters' own. The step is computed in the parameters' dtype. step() throws c10::Error for others.
  AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions options,
        at::ScalarType moments)
      : torch::optim::AdamW(groups, std::move(options)), moments_(moments) {}
  AdamW(std::vector<at::Tensor> params, AdamWOptions options, at::ScalarType moments)
      : torch::optim::AdamW(std::move(params), std::move(options)), moments_(moments) {}
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  std::optional<at::ScalarType> moments_;
};

}  // namespace fsdp
