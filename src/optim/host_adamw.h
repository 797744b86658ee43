// HostAdamW: AdamW for parameters in host memory, one pass over all of them, on all of LibTorch's threads.
#pragma once

#include <c10/core/Event.h>
#include <torch/optim/adamw.h>

#include <map>
#include <memory>
#include <vector>

#include "kernels/cpu/adamw.h"

namespace fsdp::detail {

class HostShard;
struct UnitRegion;

// True if it takes a parameter: fp32, dense, in host memory, with fp32 or bf16 moments of the same shape.
bool fits_host_adamw(const at::Tensor& param, const at::Tensor& grad,
                     const torch::optim::AdamWParamState& state);

// One step of some parameters.
class HostAdamW {
 public:
  // `region`: the one that `param` is a slice of, or null. `factor` multiplies the gradient as it is read.
  void add(const at::Tensor& param, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
           const torch::optim::AdamWOptions& options, UnitRegion* region, float factor = 1);
  // For a slice without elements: all ranks must know that the unit is written.
  void touch(const at::Tensor& param);
  // Writes the parameters, or promises to: see Note [Offload].
  void flush();
  // Promises the updates that were added, of one region in host memory. Their gradients are there once
  // `arrived` is reached.
  void promise(const std::shared_ptr<c10::Event>& arrived);

 private:
  struct Piece {
    AdamWArrays arrays;
    size_t count = 0;
    AdamWNumbers numbers;
    bool narrow = false;
  };
  struct Update {
    std::vector<Piece> pieces;
    std::vector<at::Tensor> kept;  // owns the memory that the pieces point at
    bool copies = false;           // the shard's copy is written too
  };

  static void run(const std::vector<Piece>& pieces, int threads);

  std::map<HostShard*, Update> updates_;  // null: of unobserved parameters, or of those not to be promised
  std::vector<at::Tensor> written_;
};

}  // namespace fsdp::detail
