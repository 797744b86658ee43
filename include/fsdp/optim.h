// Optimizers made for shards.
#pragma once

#include <torch/optim/adamw.h>

namespace fsdp {

using AdamWOptions = torch::optim::AdamWOptions;

// AdamW in one fused pass per parameter group, on CPU and CUDA. Groups, learning rate schedulers, state and
// serialisation are those of torch::optim::AdamW. `amsgrad` works too.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace fsdp
