// Promise: with TokenMean a step's gradient is that of the mean over all counted tokens of its global batch,
// though ranks and microbatches count different numbers. The plain loop sees all of them as one batch.
#include <gmock/gmock.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using torch::nn::functional::cross_entropy;
using torch::nn::functional::CrossEntropyFuncOptions;

constexpr int64_t kTokens = 6;
constexpr int64_t kClasses = 5;
constexpr int64_t kIgnored = -100;

// In fp64, so that differences are errors and not rounding.
torch::nn::Linear make_head() {
  const SeededHere seeded(3);
  torch::nn::Linear head(4, kClasses);
  head->to(at::kDouble);
  return head;
}

struct Part {
  Tensor x, targets;
  int64_t counted = 0;
};

// Microbatch `i` of a step: it counts i mod 4 of its tokens, so some count none.
Part microbatch(int64_t i) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(i) + 1);
  Part part{.x = torch::randn({kTokens, 4}, generator, torch::kDouble),
            .targets = torch::randint(kClasses, {kTokens}, generator, torch::kLong),
            .counted = i % 4};
  part.targets.slice(0, part.counted).fill_(kIgnored);
  return part;
}

Tensor mean_loss(const Tensor& logits, const Part& part) {
  // The mean over no tokens is 0 / 0.
  const Tensor targets = part.counted > 0 ? part.targets : torch::zeros_like(part.targets);
  return cross_entropy(logits, targets, CrossEntropyFuncOptions().ignore_index(kIgnored));
}

struct Gradients {
  Tensor weight, bias;
};

// Of one batch with all tokens of the step.
Gradients plain_gradients(int64_t microbatches) {
  auto head = make_head();
  std::vector<Tensor> xs, targets;
  for (int64_t i = 0; i < microbatches; ++i) {
    const Part part = microbatch(i);
    xs.push_back(part.x);
    targets.push_back(part.targets);
  }
  cross_entropy(head(torch::cat(xs)), torch::cat(targets), CrossEntropyFuncOptions().ignore_index(kIgnored))
      .backward();
  return {head->weight.grad(), head->bias.grad()};
}

int64_t counted_in(int64_t microbatches) {
  int64_t total = 0;
  for (int64_t i = 0; i < microbatches; ++i) total += microbatch(i).counted;
  return total;
}

// This rank's part of the step, and what comes out of it.
void check_step(World& world, int64_t microbatches, const ShardOptions& options) {
  auto model = fully_shard(world, make_head(), options);
  TokenMean mean(world, options);
  std::vector<Part> mine;
  std::vector<int64_t> counts;
  for (int64_t i = world.rank(); i < microbatches; i += world.size()) {
    mine.push_back(microbatch(i));
    counts.push_back(mine.back().counted);
  }
  const std::vector<double> weights = mean.weights(counts);
  require(mean.total() == counted_in(microbatches), "tokens of all ranks");
  require(mean.weights(counts, mean.total()) == weights, "the same if the total is known");
  for (size_t i = 0; i < mine.size(); ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < mine.size() && !options.reproducible) no_sync = model.no_sync();
    (mean_loss(model(mine[i].x), mine[i]) * weights[i]).backward();
  }
  const auto whole = model.full_params({.gradients = true});
  const Gradients wanted = plain_gradients(microbatches);
  const auto same = [](const Tensor& got, const Tensor& plain) {
    return (got - plain).abs().max().item<double>() < 1e-12;
  };
  require(same(model.module().weight.grad(), wanted.weight), "the gradient of the weight");
  require(same(model.module().bias.grad(), wanted.bias), "the gradient of the bias");
}

TEST(TokenMean, IsThatOfTheWholeBatch) {
  for (const int ranks : {1, 2, 3})
    for (const int64_t accumulation : {1, 2, 3}) {
      const int64_t microbatches = ranks * accumulation;
      if (counted_in(microbatches) == 0) continue;
      run_ranks(ranks, [&](World& world) {
        for (const auto strategy : {Strategy::full_shard, Strategy::no_shard})
          check_step(world, microbatches, {.strategy = strategy});
      });
    }
}

TEST(TokenMean, KnowsByWhatGradientsAreDivided) {
  run_ranks(2, [](World& world) {
    check_step(world, 6, {.gradients = ReduceOp::sum});
    check_step(world, 6, {.gradient_divide_factor = 5.0});
    check_step(world, 6, {.gradients = ReduceOp::sum, .gradient_divide_factor = 0.5});
  });
  run_ranks(
      4, [](World& world) { check_step(world, 8, {.strategy = Strategy::hybrid_shard, .shard_size = 2}); });
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks,
              [](World& world) { check_step(world, 8, {.reproducible = Reproducible{.microbatches = 8}}); });
}

TEST(TokenMean, WeighsMicrobatchesWithoutTokensByZero) {
  run_ranks(2, [](World& world) {
    TokenMean mean(world, {});
    require(mean.weights({world.rank()}) == std::vector<double>{2.0 * world.rank()}, "one rank counts none");
    require(mean.total() == 1, "the token of rank 1");
    require(mean.weights({0, 0}) == std::vector<double>{0, 0} && mean.total() == 0, "no rank counts any");
  });
}

}  // namespace
}  // namespace fsdp::testing
