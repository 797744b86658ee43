// Promise: fp16 training with a GradScaler takes the steps of the plain fp16 loop with a scaler, to the bit,
// and skips the same ones on every rank.
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int kGradScalerSteps = 14;
const GradScalerOptions kEager{.init_scale = 1U << 24, .growth_interval = 3};  // skips at once, grows soon

struct Trace {
  State weights;
  std::vector<double> scales;  // before every step
  std::vector<bool> stepped;
};

// The rule of torch.amp.GradScaler over gradients that are summed along the tree.
Trace train_plain_fp16(Learner& learner, int ranks) {
  PlainTrainer trainer(learner, ranks,
                       {.compute = [](const std::string&, at::ScalarType) { return at::kHalf; }});
  const auto optimizer = make_optimizer(Optim::sgd, trainer.parameters());
  Trace trace;
  double scale = kEager.init_scale;
  int64_t good = 0;
  for (int step = 0; step < kGradScalerSteps; ++step) {
    trainer.backward([&](int rank) {
      const auto batch = learner.batch_on(step * ranks + rank, at::kCPU, at::kHalf);
      return learner.forward(batch).to(at::kFloat) * scale;
    });
    bool finite = true;
    for (const Tensor& param : trainer.parameters()) {
      finite = finite && param.grad().isfinite().all().item<bool>();
      param.mutable_grad().mul_(static_cast<float>(1.0 / scale));
    }
    trace.scales.push_back(scale);
    trace.stepped.push_back(finite);
    good = finite ? good + 1 : 0;
    if (finite) optimizer->step();
    if (!finite) scale *= 0.5;
    if (good == kEager.growth_interval) good = 0, scale *= 2;
    trainer.load();
  }
  trace.weights = trainer.state();
  return trace;
}

Trace train_sharded_fp16(Sharded<Learner>& model, const World& world, bool unscale_first) {
  const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
  GradScaler scaler(world, kEager);
  Trace trace;
  for (int step = 0; step < kGradScalerSteps; ++step) {
    trace.scales.push_back(scaler.get_scale());
    scaler.scale(model(model.module().batch(step * world.size() + world.rank()))).backward();
    if (unscale_first) scaler.unscale_(*optimizer);
    trace.stepped.push_back(scaler.step(*optimizer));
    scaler.update();
    optimizer->zero_grad();
  }
  trace.weights = state_of(model);
  return trace;
}

TEST(GradScaler, TakesTheStepsOfThePlainLoop) {
  for (const char* name : {"mlp", "gpt2"})
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks) + " ranks");
      const Trace wanted = train_plain_fp16(*make_learner(name), ranks);
      EXPECT_FALSE(wanted.stepped.front()) << "the first step is one to skip";
      EXPECT_TRUE(wanted.stepped.back());
      EXPECT_GT(*std::max_element(wanted.scales.begin() + 5, wanted.scales.end()), wanted.scales.back() / 2);
      EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
        auto model = fully_shard(world, make_learner(name), {.wrap = by_size(200), .precision = fp16()});
        const Trace trace = train_sharded_fp16(model, world, world.size() == 2);
        require(trace.scales == wanted.scales, "the same scales");
        require(trace.stepped == wanted.stepped, "the same steps are skipped");
        require_same(trace.weights, wanted.weights, "the same weights: ");
      }));
    }
}

// What one rank has in its own slice only stops all of them.
TEST(GradScaler, OneRanksInfinityStopsEveryRank) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200), .precision = fp16()});
    const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
    GradScaler scaler(world, {.init_scale = 8});
    const State before = state_of(model);
    scaler.scale(model(model.module().batch(world.rank()))).backward();
    if (world.rank() == 2)
      for (const Tensor& slice : model.parameters())
        if (slice.numel() > 0) slice.grad()[0] = std::numeric_limits<float>::quiet_NaN();
    require(!scaler.step(*optimizer), "the step is skipped");
    scaler.update();
    require(scaler.get_scale() == 4, "the scale shrinks");
    require_same(state_of(model), before, "nothing was written: ");
  });
}

TEST(GradScaler, GradientsAreUnscaledBeforeTheyAreClipped) {
  run_ranks(2, [](World& world) {
    std::vector<double> norms;
    for (const double scale : {1.0, 1024.0}) {
      auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200), .precision = fp16()});
      const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
      GradScaler scaler(world, {.init_scale = scale});
      scaler.scale(model(model.module().batch(world.rank()))).backward();
      scaler.unscale_(*optimizer);
      norms.push_back(model.clip_grad_norm_(1.0).item<double>());
    }
    require(std::abs(norms[0] - norms[1]) < 1e-2 * norms[0],
            std::to_string(norms[0]) + " and " + std::to_string(norms[1]));
  });
}

TEST(GradScaler, GoesOnFromItsState) {
  run_ranks(2, [](World& world) {
    GradScaler first(world, {.init_scale = 64, .growth_interval = 2});
    at::Tensor weight = torch::ones({3}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 0.1);
    const auto good_step = [&](GradScaler& scaler) {
      optimizer.zero_grad();
      scaler.scale(weight.sum()).backward();
      require(weight.grad()[0].item<double>() == scaler.get_scale(), "scaled");
      scaler.step(optimizer);
      require(weight.grad()[0].item<double>() == 1, "and unscaled");
      scaler.update();
    };
    good_step(first);
    GradScaler second(world, {.growth_interval = 2});
    second.load_state_dict(first.state_dict());
    good_step(second);
    require(second.get_scale() == 128, "the second good step of two");
    second.update(32.0);
    require(second.get_scale() == 32, "set by hand");
  });
}

TEST(GradScaler, DisabledItPassesAll) {
  run_ranks(1, [](World& world) {
    GradScaler scaler(world, {.enabled = false});
    at::Tensor weight = torch::ones({1}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 1.0);
    const Tensor loss = weight.sum() * std::numeric_limits<double>::infinity();
    require(scaler.scale(loss).is_same(loss), "the loss as it is");
    loss.backward();
    require(scaler.step(optimizer), "a step whatever the gradients are");
    scaler.update();
    require(scaler.get_scale() == 1, "scale 1");
  });
}

TEST(GradScaler, MisuseIsAnsweredInWords) {
  run_ranks(1, [](World& world) {
    at::Tensor weight = torch::ones({1}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 1.0);
    GradScaler scaler(world);
    require_words(refusal([&] { scaler.update(); }), "update() without");
    scaler.unscale_(optimizer);
    require_words(refusal([&] { scaler.unscale_(optimizer); }), "already");
    scaler.step(optimizer);
    require_words(refusal([&] { scaler.step(optimizer); }), "twice");
    require_words(refusal([&] { GradScaler(world, {.growth_factor = 1}); }), "growth_factor 1");
    require_words(refusal([&] { GradScaler(world, {.backoff_factor = 2}); }), "backoff_factor 2");
    require_words(refusal([&] { GradScaler(world, {.growth_interval = 0}); }), "growth_interval 0");
    require_words(refusal([&] { GradScaler(world, {.init_scale = 0}); }), "a scale of 0");
    require_words(refusal([&] { scaler.load_state_dict({.scale = INFINITY}); }), "a scale of inf");
  });
}

}  // namespace
}  // namespace fsdp::testing
