// AdamW for parameters in host memory: one pass over all of them, on all of LibTorch's threads.
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

// Whether it takes a parameter: fp32, dense, in host memory, with fp32 or bf16 moments of the same form.
bool fits_host_adamw(const at::Tensor& param, const at::Tensor& grad,
                     const torch::optim::AdamWParamState& state);

// What one step does with some parameters.
class HostAdamW {
 public:
  // `region`: that `param` is a slice of, or null.
  void add(const at::Tensor& param, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
           const torch::optim::AdamWOptions& options, UnitRegion* region);
  // A slice without elements: that the unit is written must be known on all ranks.
  void touch(const at::Tensor& param);
  // Writes the parameters, or promises to: see Note [Offload].
  void flush();
  // Promises what was added, of one region in host memory, with gradients that are there when `arrived` has
  // been reached.
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
    std::vector<at::Tensor> kept;  // whose memory the pieces point at
    bool copies = false;           // the shard's copy is written as well
  };

  static void run(const std::vector<Piece>& pieces, int threads);

  std::map<HostShard*, Update> updates_;  // null: of parameters that nobody watches, or not for promises
  std::vector<at::Tensor> written_;
};

}  // namespace fsdp::detail
