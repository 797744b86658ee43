// Cuts a global batch into microbatches on a number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::config {

struct BatchRequest {
  int64_t batch_size = 1;                         // sequences per rank and microbatch
  int64_t accumulation = 1;                       // counts only if there is no global_batch_size
  std::optional<int64_t> global_batch_size = {};  // sequences per step
  int64_t ranks = 1;
  bool reproducible = false;
};

// global_batch_size = batch_size x accumulation x ranks = batch_size x microbatches.
struct BatchPlan {
  int64_t batch_size = 1;
  int64_t accumulation = 1;
  int64_t global_batch_size = 1;
  int64_t microbatches = 1;  // of all ranks

  bool operator==(const BatchPlan&) const = default;
};

struct BatchResult {
  BatchPlan plan;
  std::string problem;  // empty: the plan holds. Else what does not fit, and values that would
};

// Accumulation follows from global_batch_size where that is set, so the same global batch runs on another
// number of ranks. In reproducible mode the number of microbatches must be a power of two: gradients are then
// summed in the same order for every number of ranks. All numbers of the request are
// at least 1, and their product fits 63 bits.
BatchResult plan_batch(const BatchRequest& request);

// The values of batch_size that divide `global_batch_size` on `ranks` ranks, largest first.
std::vector<int64_t> batch_sizes_that_fit(int64_t global_batch_size, int64_t ranks, bool reproducible);

}  // namespace fsdp::config
