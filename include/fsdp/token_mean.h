// The mean over all counted tokens of a step, even if ranks and microbatches count different numbers of them.
#pragma once

#include <fsdp/options.h>
#include <fsdp/world.h>

#include <cstdint>
#include <vector>

namespace fsdp {

// Weights for the mean losses of microbatches, so that a step's gradient is that of the mean over all counted
// tokens of its global batch. The plain mean of means would give tokens of short microbatches more weight.
//
//   fsdp::TokenMean mean(world, options);
//   const auto weights = mean.weights(counts);        // counts of this rank's microbatches, before backward
//   for (size_t i = 0; i < counts.size(); ++i)
//     (model(x[i], y[i]) * weights[i]).backward();    // each loss: the mean over its microbatch's tokens
class TokenMean {
 public:
  // `options`: those given to fully_shard(), which decide by which number gradients are divided.
  TokenMean(const World& world, const ShardOptions& options);

  // Sums the counts over all ranks: collective. A microbatch without counted tokens has weight 0: its loss is
  // 0 / 0, so give it a loss that is finite. If no rank counts any token, all weights are 0.
  std::vector<double> weights(const std::vector<int64_t>& counts);
  // The same if the total over all ranks is known. Not collective.
  std::vector<double> weights(const std::vector<int64_t>& counts, int64_t total) const;

  int64_t total() const { return total_; }  // counted tokens of the last step, over all ranks

 private:
  World world_;
  double divisor_;  // of the sum of gradients
  int64_t total_ = 0;
};

}  // namespace fsdp
