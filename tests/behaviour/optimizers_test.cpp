// Promise: elementwise optimizers work on slices to the same bits, and fsdp::AdamW is AdamW.
#include <gtest/gtest.h>

#include <sstream>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using torch::optim::Optimizer;

constexpr int kOptimizersSteps = 10;

template <class Kind, class Options>
MakeOptimizer made_with(Options options) {
  return [options](std::vector<Tensor> params) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Kind>(std::move(params), options);
  };
}

// Called after each step, on the plain optimizer and on a rank's own.
using AfterStep = std::function<void(Optimizer&, int step)>;

State train_plain(const std::string& name, int ranks, const MakeOptimizer& make,
                  const AfterStep& after = {}) {
  const auto learner = make_learner(name);
  PlainTrainer trainer(*learner, ranks);
  const auto optimizer = make(trainer.parameters());
  for (int step = 0; step < kOptimizersSteps; ++step) {
    trainer.backward([&](int rank) { return learner->forward(learner->batch(step * ranks + rank)); });
    trainer.step(*optimizer);
    if (after) after(*optimizer, step);
  }
  return trainer.state();
}

using MakeForModel = std::function<std::unique_ptr<Optimizer>(Sharded<Learner>&)>;

State train_ranks(const std::string& name, int ranks, const MakeForModel& make, const AfterStep& after = {}) {
  State result;
  run_ranks(ranks, [&](World& world) {
    auto model = fully_shard(world, make_learner(name), {.wrap = by_size(200)});
    ShardedTwin twin(world, model, [&](const auto&) { return make(model); });
    for (int step = 0; step < kOptimizersSteps; ++step) {
      twin.train();
      if (after) after(*twin.optimizer, step);
    }
    State state = state_of(model);
    if (world.rank() == 0) result = std::move(state);
  });
  return result;
}

MakeForModel on_slices(const MakeOptimizer& make) {
  return [make](Sharded<Learner>& model) { return make(model.parameters()); };
}

TEST(Optimizers, StockOnesHaveTheSameBitsOnSlices) {
  using namespace torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> all = {
      {"SGD", made_with<SGD>(SGDOptions(0.05))},
      {"SGD momentum", made_with<SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.1).weight_decay(0.01))},
      {"SGD nesterov", made_with<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true))},
      {"Adam", made_with<Adam>(AdamOptions(1e-2).weight_decay(0.01))},
      {"Adam amsgrad", made_with<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"AdamW", made_with<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2))},
      {"RMSprop", made_with<RMSprop>(RMSpropOptions(1e-3).momentum(0.9).centered(true))},
      {"Adagrad", made_with<Adagrad>(AdagradOptions(1e-2).lr_decay(0.01))},
  };
  for (const auto& [name, make] : all)
    for (const char* learner : {"mlp", "gpt2"})
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(name + " of " + learner + " on " + std::to_string(ranks) + " ranks");
        EXPECT_EQ(difference(train_ranks(learner, ranks, on_slices(make)), train_plain(learner, ranks, make)),
                  "");
      }
}

// The fused kernel rounds in another order than the loop of torch::optim: a few units in the last place of
// each step, of values near 1.
constexpr double kFusedTolerance = 1e-5;

void expect_adamw(const AdamWOptions& options) {
  const auto fused = made_with<AdamW>(options);
  const auto stock = made_with<torch::optim::AdamW>(options);
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const State got = train_ranks("mlp", ranks, on_slices(fused));
    EXPECT_EQ(difference(got, train_plain("mlp", ranks, fused)), "");  // slices have the bits of the whole
    EXPECT_LT(drift(got, train_plain("mlp", ranks, stock)), kFusedTolerance);
    // Here no tolerance would do: the gradient of a key's bias is zero but for rounding, and Adam divides it
    // by its own size.
    EXPECT_EQ(difference(train_ranks("gpt2", ranks, on_slices(fused)), train_plain("gpt2", ranks, fused)),
              "");
  }
}

TEST(Optimizers, FusedAdamWIsAdamW) { expect_adamw(AdamWOptions(1e-3).weight_decay(0.1)); }
TEST(Optimizers, FusedAdamWWithAmsgrad) { expect_adamw(AdamWOptions(1e-3).amsgrad(true)); }
TEST(Optimizers, FusedAdamWWithOtherBetas) {
  expect_adamw(AdamWOptions(3e-3).betas({0.8, 0.95}).eps(1e-6).weight_decay(0));
}

// All ranks see the same batch: the number of ranks must not show. Powers of two, so that the average is
// exact.
TEST(Optimizers, BitsDoNotDependOnTheNumberOfRanks) {
  const auto trained = [](int ranks) {
    State result;
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      AdamW optimizer(model.parameters(), AdamWOptions(1e-2).weight_decay(0.1));
      for (int step = 0; step < kOptimizersSteps; ++step) {
        model(model.module().batch(step)).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      State state = state_of(model);
      if (world.rank() == 0) result = std::move(state);
    });
    return result;
  };
  const State alone = trained(1);
  for (const int ranks : {2, 4, 8}) EXPECT_EQ(difference(trained(ranks), alone), "") << ranks << " ranks";
}

// Slices are 1-D: whether a parameter was a matrix is known from parameter_info().
TEST(Optimizers, WeightDecayGroupsByTheOriginalShape) {
  const auto groups = [](const std::vector<Tensor>& matrices, const std::vector<Tensor>& rest) {
    std::vector<torch::optim::OptimizerParamGroup> made;
    made.emplace_back(matrices, std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.5)));
    made.emplace_back(rest, std::make_unique<AdamWOptions>(AdamWOptions(1e-3).weight_decay(0)));
    return made;
  };
  const MakeOptimizer plain = [&](const std::vector<Tensor>& params) -> std::unique_ptr<Optimizer> {
    std::vector<Tensor> matrices, rest;
    for (const Tensor& param : params) (param.dim() >= 2 ? matrices : rest).push_back(param);
    return std::make_unique<AdamW>(groups(matrices, rest), AdamWOptions());
  };
  const MakeForModel sharded = [&](Sharded<Learner>& model) -> std::unique_ptr<Optimizer> {
    std::vector<Tensor> matrices, rest;
    for (const auto& item : model.named_parameters()) {
      require(item.value().dim() == 1, "slices are flat");
      (model.parameter_info(item.key()).shape.size() >= 2 ? matrices : rest).push_back(item.value());
    }
    require(!matrices.empty() && !rest.empty(), "both groups have members");
    return std::make_unique<AdamW>(groups(matrices, rest), AdamWOptions());
  };
  for (const int ranks : {1, 2, 3}) {
    const State wanted = train_plain("gpt2", ranks, plain);
    EXPECT_EQ(difference(train_ranks("gpt2", ranks, sharded), wanted), "") << ranks << " ranks";
    const State one_group =
        train_plain("gpt2", ranks, made_with<AdamW>(AdamWOptions(1e-2).weight_decay(0.5)));
    EXPECT_NE(difference(wanted, one_group), "") << "the split makes a difference";
  }
}

TEST(Optimizers, LearningRateSchedulers) {
  const auto make = made_with<AdamW>(AdamWOptions(1e-2));
  // One scheduler per optimizer, made when it first steps.
  const auto scheduled = [](Optimizer& optimizer, int step) {
    thread_local std::unique_ptr<torch::optim::StepLR> scheduler;
    if (step == 0) scheduler = std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.1);
    scheduler->step();
  };
  for (const int ranks : {1, 2, 3}) {
    const State wanted = train_plain("gpt2", ranks, make, scheduled);
    EXPECT_EQ(difference(train_ranks("gpt2", ranks, on_slices(make), scheduled), wanted), "");
    EXPECT_NE(difference(wanted, train_plain("gpt2", ranks, make)), "") << "the scheduler makes a difference";
  }
}

std::string saved(const Optimizer& optimizer) {
  std::ostringstream out;
  torch::save(optimizer, out);
  return out.str();
}

// Halfway, model and optimizer are put into new ones: they go on to the same bits.
void expect_resumes(const MakeOptimizer& make) {
  for (const int ranks : {1, 2, 3}) {
    const State wanted = train_plain("gpt2", ranks, make);
    run_ranks(ranks, [&](World& world) {
      ShardedTwin first(world, fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)}), make);
      while (first.step < kOptimizersSteps / 2) first.train();
      const std::string bytes = saved(*first.optimizer);
      const State half = state_of(first);

      const auto later = make_learner("gpt2");
      {
        const at::NoGradGuard no_grad;
        for (auto& item : later->named_parameters()) item.value().copy_(half.at(item.key()));
      }
      ShardedTwin second(world, fully_shard(world, later, {.wrap = by_size(200)}), make);
      std::istringstream in(bytes);
      torch::load(*second.optimizer, in);
      for (second.step = first.step; second.step < kOptimizersSteps;) second.train();
      require_same(state_of(second), wanted);
    });
  }
}

TEST(Optimizers, StateIsSavedAndLoaded) {
  expect_resumes(made_with<AdamW>(AdamWOptions(1e-2)));
  expect_resumes(made_with<AdamW>(AdamWOptions(1e-2).amsgrad(true)));
}

TEST(Optimizers, AClosureIsCalledOnceWithGradientsOn) {
  for (const int ranks : {1, 2}) {
    const State wanted = train_plain("mlp", ranks, made_with<AdamW>(AdamWOptions(1e-2)));
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
      AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
      const at::NoGradGuard no_grad;
      int calls = 0;
      for (int step = 0; step < kOptimizersSteps; ++step) {
        Tensor seen;
        const Tensor loss = optimizer.step([&] {
          ++calls;
          optimizer.zero_grad();
          seen = model(model.module().batch(step * ranks + world.rank()));
          seen.backward();
          return seen;
        });
        require(loss.equal(seen), "the closure's loss comes back");
      }
      require(calls == kOptimizersSteps, "once per step");
      require_same(state_of(model), wanted);
    });
  }
}

// A parameter that gets its first gradient later has made fewer steps than the others.
TEST(Optimizers, ParametersCountTheirOwnSteps) {
  struct Late : Learner {
    Late() {
      const SeededHere seeded(1);
      always = register_parameter("always", torch::randn({9}));
      late = register_parameter("late", torch::randn({9}));
    }
    std::vector<Tensor> batch(int64_t index) const override { return {torch::full({}, index)}; }
    Tensor forward(const std::vector<Tensor>& batch) override {
      const auto loss = always.square().sum();
      return batch[0].item<int64_t>() >= 3 ? loss + late.square().sum() : loss;
    }
    Tensor always, late;
  };
  const auto train = [](auto&& call, Optimizer& optimizer) {
    for (int64_t step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      call(std::vector<Tensor>{torch::full({}, step)}).backward();
      optimizer.step();
    }
  };
  Late plain;
  torch::optim::AdamW stock(plain.parameters(), torch::optim::AdamWOptions(0.1));
  train([&](const std::vector<Tensor>& batch) { return plain.forward(batch); }, stock);
  const State wanted = state_of(static_cast<Learner&>(plain));
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(std::make_shared<Late>()),
                               {.wrap = [](const ModuleInfo&) { return false; }, .max_unit_bytes = 36});
      AdamW optimizer(model.parameters(), AdamWOptions(0.1));
      train(model, optimizer);
      const double off = drift(state_of(model), wanted);
      require(off < kFusedTolerance, "drift " + std::to_string(off));
    });
}

}  // namespace
}  // namespace fsdp::testing
