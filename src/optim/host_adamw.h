// AdamW for parameters in host memory: one pass over all of them, on all of LibTorch's threads.
#pragma once

#include <torch/optim/adamw.h>

#include <vector>

#include "kernels/cpu/adamw.h"

namespace fsdp::detail {

// Whether it takes a parameter: fp32, dense, in host memory, with bf16 moments of the same form. (With fp32
// moments LibTorch's fused operator is as fast, and its bits are those of PyTorch.)
bool fits_host_adamw(const at::Tensor& param, const torch::optim::AdamWParamState& state);

// What one step does with some parameters. They are written by flush().
class HostAdamW {
 public:
  void add(const at::Tensor& param, const torch::optim::AdamWParamState& state,
           const torch::optim::AdamWOptions& options);
  void flush();

 private:
  struct Piece {
    AdamWArrays arrays;
    size_t count = 0;
    AdamWNumbers numbers;
    bool narrow = false;
  };

  std::vector<Piece> pieces_;
  std::vector<at::Tensor> written_;
};

}  // namespace fsdp::detail
