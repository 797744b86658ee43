// Promise: with sync_batchnorm an unmodified model normalises over all ranks, as over the whole batch.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kBatchNormSteps = 6;

State buffers_of(torch::nn::Module& module) {
  State state;
  for (auto& item : module.named_buffers()) state[item.key()] = item.value().detach().clone().to(at::kFloat);
  return state;
}

// Equal to rounding: statistics are put together from the ranks' own.
TEST(SyncBatchNorm, EqualsOneRankWithAllBatches) {
  for (const int ranks : {2, 4}) {
    const auto whole = make_learner("convnet");
    const State wanted = train_whole_batch(*whole, ranks, kBatchNormSteps, Optim::plain_sgd);
    const State wanted_buffers = buffers_of(*whole);
    const auto run = [&](bool sync) {
      double worst = 0, worst_buffers = 0;
      run_ranks(ranks, [&](World& world) {
        auto model =
            fully_shard(world, make_learner("convnet"), {.wrap = by_size(200), .sync_batchnorm = sync});
        train_sharded(model, world, kBatchNormSteps, Optim::plain_sgd);
        const double found = drift(state_of(model), wanted);
        if (world.rank() == 0) {
          worst = found;
          worst_buffers = drift(buffers_of(model.module()), wanted_buffers);
        }
      });
      return std::pair(worst, worst_buffers);
    };
    const auto [params, buffers] = run(true);
    EXPECT_LE(params, 2e-5) << ranks << " ranks";
    EXPECT_LE(buffers, 2e-5) << ranks << " ranks";
    const auto [alone, alone_buffers] = run(false);
    EXPECT_GT(alone, 1e-3) << "without it a rank's own statistics count";
    EXPECT_GT(alone_buffers, 1e-3);
  }
}

// On a GPU the operators are cuDNN's.
TEST(GpuSyncBatchNorm, EqualsOneRankWithAllBatches) {
  run_on_gpus(2, [](World& world) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    const State wanted = train_whole_batch(*make_learner("convnet"), 2, kBatchNormSteps, Optim::plain_sgd);
    auto model = fully_shard(world, make_learner("convnet"), {.wrap = by_size(200), .sync_batchnorm = true});
    train_sharded(model, world, kBatchNormSteps, Optim::plain_sgd);
    State found = state_of(model);
    for (auto& [name, value] : found) value = value.cpu();
    const double drifted = drift(found, wanted);
    require(drifted <= 1e-3, "drift " + std::to_string(drifted));  // TF32 is off, but sums differ
  });
}

// A convolution's penalty on the gradient of its input.
struct Penalised : torch::nn::Module {
  Penalised() {
    const SeededHere seeded(5);
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
  }
  at::Tensor forward(const at::Tensor& image) {
    const auto x = image.clone().requires_grad_();
    const auto y = norm(convolution(x)).square().mean();
    return y + torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0].square().sum();
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};

// The second derivative would be that of a rank's own statistics.
TEST(SyncBatchNorm, ADoubleBackwardIsRefused) {
  const auto step = [](World& world, const ShardOptions& options, bool training) {
    return refusal([&] {
      auto model = fully_shard(world, std::make_shared<Penalised>(), options);
      model.train(training);
      model(torch::arange(2 * 2 * 5 * 5).to(torch::kFloat).sin().view({2, 2, 5, 5}) + world.rank())
          .backward();
    });
  };
  run_ranks(2, [&](World& world) {
    for (const char* word : {"sync_batchnorm", "create_graph", "eval()"})
      require_words(step(world, {.sync_batchnorm = true}, true), word);
    require_words(step(world, {.sync_batchnorm = true}, false), "not refused");
    require_words(step(world, {}, true), "not refused");
  });
  run_ranks(1,
            [&](World& world) { require_words(step(world, {.sync_batchnorm = true}, true), "not refused"); });
}

TEST(SyncBatchNorm, EvaluationUsesRunningStatistics) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_learner("convnet"), {.sync_batchnorm = true});
    train_sharded(model, world, 2, Optim::plain_sgd);
    model.eval();
    const at::NoGradGuard no_grad;
    const auto before = buffers_of(model.module());
    const auto loss = model(model.module().batch(0));
    require(loss.isfinite().item<bool>(), "loss");
    require(difference(buffers_of(model.module()), before).empty(), "statistics changed in eval()");
  });
}

}  // namespace
}  // namespace fsdp::testing
