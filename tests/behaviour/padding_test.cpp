// Promise: what lies between and behind the parameters of a gradient shard is zero after a backward, and no
// norm sees it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

// Sizes that no number of ranks divides: every shard has padding, and some have nothing else.
struct Ragged : Learner {
  Ragged() {
    const SeededHere seeded(6);
    first = register_module("first", torch::nn::Linear(7, 5));
    second = register_module("second", torch::nn::Linear(5, 3));
  }
  std::vector<at::Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({4, 7}, gen)};
  }
  at::Tensor forward(const std::vector<at::Tensor>& batch) override {
    return second(first(batch[0]).tanh()).square().mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// Memory that is handed out again afterwards holds what spoils every sum.
void spoil_free_memory(c10::Device device) {
  std::vector<at::Tensor> spoiled;
  for (int64_t numel = 16; numel <= 4096; numel *= 2)
    for (int i = 0; i < 32; ++i)
      spoiled.push_back(torch::full({numel}, std::numeric_limits<float>::quiet_NaN(), device));
}

// All of the shard that `grad` is a slice of.
at::Tensor shard_of(const at::Tensor& grad) {
  const auto numel = static_cast<int64_t>(grad.storage().nbytes()) / grad.element_size();
  return torch::from_blob(grad.storage().mutable_data(), {numel}, grad.options().requires_grad(false));
}

// Elements of the gradient shards that no slice has, and how many of them are not zero.
struct PaddingCount {
  int64_t elements = 0, wrong = 0;
};
PaddingCount padding_of(const ShardedModel& model) {
  std::map<const void*, std::vector<at::Tensor>> shards;  // by their memory: its slices
  for (const at::Tensor& slice : model.parameters())
    if (slice.numel() > 0) shards[slice.grad().storage().data()].push_back(slice.grad());
  PaddingCount count;
  for (const auto& [memory, slices] : shards) {
    const at::Tensor shard = shard_of(slices.front());
    at::Tensor padding = torch::ones({shard.numel()}, shard.options().dtype(at::kBool));
    for (const at::Tensor& slice : slices)
      padding.narrow(0, slice.storage_offset(), slice.numel()).fill_(false);
    count.elements += padding.sum().item<int64_t>();
    count.wrong += padding.logical_and(shard.ne(0)).sum().item<int64_t>();  // NaN is not zero
  }
  return count;
}

void require_clear_padding(World& world, ShardOptions options) {
  const int ranks = world.size();
  Ragged plain;
  PlainTrainer trainer(plain, ranks);
  trainer.backward([&](int rank) { return plain.forward(plain.batch(rank)); });
  const double wanted = torch::nn::utils::clip_grad_norm_(trainer.parameters(), 1e30);

  auto model = fully_shard(world, std::static_pointer_cast<Learner>(std::make_shared<Ragged>()), options);
  for (int step = 0; step < 3; ++step) {
    spoil_free_memory(world.device());
    model(plain.batch_on(world.rank(), world.device())).backward();
    const PaddingCount padding = padding_of(model);
    // Alone, gradients stay where autograd put them.
    const auto params = model.parameters();
    const bool some = std::any_of(params.begin(), params.end(), [](const auto& p) { return p.numel() > 0; });
    require(ranks == 1 || !some || padding.elements > 0, "there is padding to look at");
    require(padding.wrong == 0, std::to_string(padding.wrong) + " of " + std::to_string(padding.elements) +
                                    " elements of padding are not zero in step " + std::to_string(step));
    const double norm = model.clip_grad_norm_(1e30).item<double>();
    require(std::abs(norm - wanted) <= 1e-5 * wanted,
            "the norm is " + std::to_string(norm) + ", not " + std::to_string(wanted));
    model.zero_grad();
  }
}

// With slots and buffers of every kind; reproducible mode takes norms over whole regions.
std::vector<ShardOptions> padding_options(int ranks) {
  std::vector<ShardOptions> all = {{.wrap = by_size(10)},
                                   {.wrap = whole_model()},
                                   {.wrap = whole_model(), .strategy = Strategy::no_shard},
                                   {.wrap = whole_model(), .replicate_below = 10}};
  all.push_back({.wrap = by_size(10), .reproducible = Reproducible{.microbatches = ranks}});
  return all;
}

TEST(Padding, OfGradientShardsIsZero) {
  for (const int ranks : {1, 2, 4})
    for (const ShardOptions& options : padding_options(ranks))
      run_ranks(ranks, [&](World& world) { require_clear_padding(world, options); });
}

TEST(GpuPadding, OfGradientShardsIsZero) {
  for (const int ranks : {1, 2, 4})
    for (const ShardOptions& options : padding_options(ranks))
      run_on_gpus(ranks, [&](World& world) { require_clear_padding(world, options); });
}

}  // namespace
}  // namespace fsdp::testing
