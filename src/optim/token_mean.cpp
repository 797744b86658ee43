#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fsdp/token_mean.h>

#include <numeric>

namespace fsdp {

namespace {

double gradient_divisor(const World& world, const ShardOptions& options) {
  if (options.reproducible) return options.reproducible->microbatches;
  if (options.gradient_divide_factor) return *options.gradient_divide_factor;
  return options.gradients == ReduceOp::average ? world.size() : 1;
}

}  // namespace

TokenMean::TokenMean(const World& world, const ShardOptions& options)
    : world_(world), divisor_(gradient_divisor(world, options)) {}

std::vector<double> TokenMean::weights(const std::vector<int64_t>& counts) {
  const int64_t mine = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto options = at::TensorOptions().dtype(at::kLong).device(world_.device());
  total_ = world_.size() == 1 ? mine : world_.sum(at::full({1}, mine, options)).item<int64_t>();
  return weights(counts, total_);
}

std::vector<double> TokenMean::weights(const std::vector<int64_t>& counts, int64_t total) const {
  if (total <= 0) return std::vector<double>(counts.size(), 0.0);
  std::vector<double> weights;
  for (const int64_t count : counts)
    weights.push_back(static_cast<double>(count) * divisor_ / static_cast<double>(total));
  return weights;
}

}  // namespace fsdp
