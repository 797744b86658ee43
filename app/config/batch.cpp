#include "app/config/batch.h"

#include <algorithm>
#include <bit>

namespace fsdp::config {

namespace {

constexpr int64_t kMostGlobalBatch = 1000000000;

bool is_power_of_two(int64_t value) { return std::has_single_bit(static_cast<uint64_t>(value)); }

std::string number(int64_t value) { return std::to_string(value); }

// "2, 4 or 8"; the first `most` of `values`.
std::string listed(const std::vector<int64_t>& values, size_t most = 6) {
  const size_t count = std::min(values.size(), most);
  std::string text;
  for (size_t i = 0; i < count; ++i)
    text += (i == 0 ? "" : i + 1 == count ? " or " : ", ") + number(values[i]);
  return text;
}

// Numbers of ranks near the one asked for on which the batch would fit.
std::vector<int64_t> ranks_that_fit(const BatchRequest& request) {
  std::vector<int64_t> fit;
  const int64_t microbatches = *request.global_batch_size / request.batch_size;
  if (*request.global_batch_size % request.batch_size != 0) return fit;
  if (request.reproducible && !is_power_of_two(microbatches)) return fit;
  for (int64_t ranks = 1; ranks <= std::min<int64_t>(microbatches, 2 * request.ranks + 8); ++ranks)
    if (microbatches % ranks == 0) fit.push_back(ranks);
  return fit;
}

std::string advice(const BatchRequest& request) {
  const int64_t unit = request.batch_size * request.ranks;
  const int64_t below = *request.global_batch_size / unit * unit;
  std::vector<int64_t> globals;
  if (request.reproducible)  // the power of two below and above
    for (int64_t micro = request.ranks; globals.size() < 2; micro *= 2) {
      if (micro * 2 * request.batch_size > *request.global_batch_size)
        globals.push_back(micro * request.batch_size);
    }
  else if (below > 0)
    globals = {below, below + unit};
  else
    globals = {unit};
  std::string text;
  const auto append = [&](const std::string& what, const std::vector<int64_t>& values,
                          const std::string& unit_name) {
    if (!values.empty()) text += (text.empty() ? "" : "; ") + what + listed(values) + unit_name;
  };
  append("a global_batch_size of ", globals, "");
  append("a batch_size of ",
         batch_sizes_that_fit(*request.global_batch_size, request.ranks, request.reproducible), "");
  append("", ranks_that_fit(request), " ranks");
  return text.empty() ? "" : ". These would fit: " + text;
}

}  // namespace

std::vector<int64_t> batch_sizes_that_fit(int64_t global_batch_size, int64_t ranks, bool reproducible) {
  std::vector<int64_t> fit;
  if (global_batch_size % ranks != 0) return fit;
  const int64_t per_rank = global_batch_size / ranks;
  const auto add = [&](int64_t size) {
    if (!reproducible || is_power_of_two(global_batch_size / size)) fit.push_back(size);
  };
  for (int64_t size = 1; size * size <= per_rank; ++size) {
    if (per_rank % size != 0) continue;
    add(size);
    if (size * size != per_rank) add(per_rank / size);
  }
  std::sort(fit.rbegin(), fit.rend());
  return fit;
}

BatchResult plan_batch(const BatchRequest& request) {
  BatchResult result;
  BatchPlan& plan = result.plan;
  const int64_t unit = request.batch_size * request.ranks;
  plan.batch_size = request.batch_size;
  plan.global_batch_size = request.global_batch_size.value_or(unit * request.accumulation);
  if (plan.global_batch_size > kMostGlobalBatch) {
    result.problem = "found a global batch of " + number(plan.global_batch_size) +
                     " sequences, expected at most " + number(kMostGlobalBatch);
    return result;
  }
  if (request.reproducible && !is_power_of_two(request.ranks)) {
    const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(request.ranks)));
    result.problem =
        "found " + number(request.ranks) +
        " ranks, expected a power of two, as reproducible mode needs: " + listed({below, 2 * below});
    return result;
  }
  plan.accumulation = plan.global_batch_size / unit;
  plan.microbatches = plan.global_batch_size / plan.batch_size;
  if (plan.global_batch_size % unit != 0) {
    result.problem = "found a global_batch_size of " + number(plan.global_batch_size) +
                     ", expected a multiple of " + number(unit) + " (batch_size " +
                     number(request.batch_size) + " x " + number(request.ranks) + " ranks)" + advice(request);
  } else if (request.reproducible && !is_power_of_two(plan.microbatches)) {
    BatchRequest asked = request;
    asked.global_batch_size = plan.global_batch_size;
    result.problem = "found " + number(plan.microbatches) + " microbatches (global_batch_size " +
                     number(plan.global_batch_size) + " / batch_size " + number(plan.batch_size) +
                     "), expected a power of two, as reproducible mode needs" + advice(asked);
  }
  return result;
}

}  // namespace fsdp::config
