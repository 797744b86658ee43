// A model with a tensor of every kind that a checkpoint must hold, and a look into checkpoints.
#pragma once

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/learners.h"
#include "support/ranks.h"
#include "support/temp_folder.h"  // IWYU pragma: export

namespace fsdp::testing {

// Uneven sizes, rows longer than a shard, tied, frozen, several dtypes, complex, channels last, a scalar, a
// tensor without elements; buffers of three types; a submodule to be ignored.
struct MixedNet : Learner {
  explicit MixedNet(uint64_t seed = 3);

  std::vector<at::Tensor> batch(int64_t index) const override;
  at::Tensor forward(const std::vector<at::Tensor>& batch) override;

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, frozen{nullptr}, own{nullptr};
  at::Tensor head, row, scale, nothing, half, wide, c64, c128, counter, mask, mean;
};

ShardOptions mixed_options();

// Every parameter and buffer of the module, whole.
std::map<std::string, at::Tensor> whole_state(Sharded<MixedNet>& model);

// Every tensor of a checkpoint, whole, read by one process.
std::map<std::string, at::Tensor> read_checkpoint(const std::string& folder);

// "" when both have the same names and bits; names beginning with `but` do not count.
std::string difference(const std::map<std::string, at::Tensor>& got,
                       const std::map<std::string, at::Tensor>& wanted, const std::string& but = "rng.");

// The words of what `work` throws; "not refused" when it throws nothing.
std::string words_of(const std::function<void()>& work);

}  // namespace fsdp::testing
