// Promise: sharded training is the training of the whole batch, to rounding; and where every rank has the
// same data, the number of ranks does not matter at all.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kWholeBatchSteps = 20;

State train_ranks(const std::string& name, int ranks, Optim kind) {
  State state;
  run_ranks(ranks, [&](World& world) {
    auto model = fully_shard(world, make_learner(name), {.wrap = by_size(200)});
    train_sharded(model, world, kWholeBatchSteps, kind);
    State mine = state_of(model);
    if (world.rank() == 0) state = std::move(mine);
  });
  return state;
}

// Batch norm sees a rank's own batch, so a ConvNet does another thing with the whole one.
class WholeBatch : public ::testing::TestWithParam<std::string> {};

TEST_P(WholeBatch, SgdEndsWithinRounding) {
  for (const int ranks : {2, 3, 4, 8}) {
    const auto whole = make_learner(GetParam());
    const double found = drift(train_ranks(GetParam(), ranks, Optim::plain_sgd),
                               train_whole_batch(*whole, ranks, kWholeBatchSteps, Optim::plain_sgd));
    std::printf("%s on %d ranks, SGD: %.2g from the whole batch\n", GetParam().c_str(), ranks, found);
    EXPECT_LE(found, 1e-6) << ranks << " ranks";
  }
}

// AdamW divides by the root of what may be rounding itself: plain accumulation drifts alike.
TEST_P(WholeBatch, AdamWDriftsNoMoreThanPlainAccumulation) {
  for (const int ranks : {2, 4}) {
    const auto whole = make_learner(GetParam());
    const auto accumulated = make_learner(GetParam());
    const State wanted = train_whole_batch(*whole, ranks, kWholeBatchSteps, Optim::adamw);
    const double plain =
        drift(train_accumulated(*accumulated, ranks, kWholeBatchSteps, Optim::adamw), wanted);
    const double found = drift(train_ranks(GetParam(), ranks, Optim::adamw), wanted);
    std::printf("%s on %d ranks, AdamW: %.2g from the whole batch, plain accumulation %.2g\n",
                GetParam().c_str(), ranks, found, plain);
    EXPECT_LE(found, 3 * plain) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Learners, WholeBatch,
                         ::testing::Values("mlp", "lstm", "gpt2", "gpt2_untied", "llama", "llama_tied",
                                           "frozen"));

// A sum of W equal numbers over W is exact for powers of two.
TEST(SameData, OnEveryRankGivesTheSameParametersForEveryW) {
  State alone;
  for (const int ranks : {1, 2, 4, 8}) {
    State state;
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
      for (int step = 0; step < kWholeBatchSteps; ++step) {
        model(model.module().batch(step)).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      State mine = state_of(model);
      if (world.rank() == 0) state = std::move(mine);
    });
    if (ranks == 1) alone = state;
    double sum = 0, worst = 0;
    for (const auto& [name, value] : state) {
      sum += value.to(at::kDouble).sum().item<double>();
      worst = std::max(worst, (value - alone[name]).abs().max().item<double>());
    }
    std::printf("W=%d, the same data on every rank: parameter sum %.9f, max |difference| from W=1 %.3g\n",
                ranks, sum, worst);
    EXPECT_EQ(worst, 0);
  }
}

}  // namespace
}  // namespace fsdp::testing
