// Optimizers made for shards.
#pragma once

#include <torch/optim/adamw.h>

#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

using AdamWOptions = torch::optim::AdamWOptions;

// AdamW in one fused pass per parameter group, on CPU and CUDA. Groups, learning rate schedulers, state and
// serialisation are those of torch::optim::AdamW. `amsgrad` works too.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  // Moments are kept as `moments`, for example bf16, which halves their memory; the step itself is computed
  // in the parameters' type.
  AdamW(std::vector<torch::optim::OptimizerParamGroup> groups, AdamWOptions options, at::ScalarType moments)
      : torch::optim::AdamW(std::move(groups), options), moments_(moments) {}
  AdamW(std::vector<at::Tensor> params, AdamWOptions options, at::ScalarType moments)
      : torch::optim::AdamW(std::move(params), options), moments_(moments) {}
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  std::optional<at::ScalarType> moments_;
};

}  // namespace fsdp
