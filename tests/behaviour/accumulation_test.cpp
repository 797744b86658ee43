// Promise: gradients of several microbatches add up, reduced each time or kept back by no_sync(), to the bits
// of a plain loop that sums in the same order.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int kAccumulationSteps = 5;

// What happens with the gradients of each microbatch of a step, and what comes after it.
enum class Turn { reduce, keep_back };
using Turns = std::vector<Turn>;

struct Accumulated {
  std::string learner;
  int ranks = 2;
  Turns turns;
  ReduceOp op = ReduceOp::average;
  Strategy strategy = Strategy::full_shard;
  Optim optim = Optim::sgd;
  int64_t replicate_below = 0;
  Precision precision = {};
  WrapPolicy wrap = by_size(200);
};

int64_t batch_number(const Accumulated& run, int step, size_t turn, int rank) {
  return (step * static_cast<int64_t>(run.turns.size()) + static_cast<int64_t>(turn)) * run.ranks + rank;
}

State train_reference(Learner& learner, const Accumulated& run) {
  PlainTrainer trainer(learner, run.ranks, {.op = run.op});
  const auto optimizer = make_optimizer(run.optim, trainer.parameters());
  for (int step = 0; step < kAccumulationSteps; ++step) {
    for (size_t turn = 0; turn < run.turns.size(); ++turn) {
      trainer.collect(
          [&](int rank) { return learner.forward(learner.batch(batch_number(run, step, turn, rank))); });
      if (run.turns[turn] == Turn::reduce) trainer.reduce();
    }
    trainer.step(*optimizer);
  }
  return trainer.state();
}

void backward(Sharded<Learner>& model, int64_t number, Turn turn) {
  if (turn == Turn::keep_back) {
    const auto kept_back = model.no_sync();
    model(model.module().batch(number)).backward();
  } else {
    model(model.module().batch(number)).backward();
  }
}

void expect_reference(const Accumulated& run, const std::function<std::shared_ptr<Learner>()>& make) {
  SCOPED_TRACE(run.learner + " on " + std::to_string(run.ranks) + " ranks, strategy " +
               std::to_string(static_cast<int>(run.strategy)));
  const State wanted = train_reference(*make(), run);
  EXPECT_NO_THROW(run_ranks(run.ranks, [&](World& world) {
    auto model = fully_shard(world, make(),
                             {.wrap = run.wrap,
                              .strategy = run.strategy,
                              .precision = run.precision,
                              .replicate_below = run.replicate_below,
                              .gradients = run.op});
    const auto optimizer = make_optimizer(run.optim, model.parameters());
    for (int step = 0; step < kAccumulationSteps; ++step) {
      for (size_t turn = 0; turn < run.turns.size(); ++turn)
        backward(model, batch_number(run, step, turn, world.rank()), run.turns[turn]);
      optimizer->step();
      optimizer->zero_grad();
    }
    require_same(state_of(model), wanted);
  }));
}

void expect_reference(const Accumulated& run) {
  expect_reference(run, [&] { return make_learner(run.learner); });
}

const Turns kReduceEach = {Turn::reduce, Turn::reduce, Turn::reduce};
const Turns kReduceLast = {Turn::keep_back, Turn::keep_back, Turn::reduce};
const Turns kMixture = {Turn::reduce, Turn::keep_back, Turn::keep_back, Turn::reduce, Turn::reduce};
// The last one's gradients are part of the next step.
const Turns kLate = {Turn::reduce, Turn::keep_back};

TEST(Accumulation, ReducedEachTime) {
  for (const char* learner : {"mlp", "gpt2", "frozen"})
    for (const int ranks : {1, 2, 3, 4})
      expect_reference({.learner = learner, .ranks = ranks, .turns = kReduceEach});
}

TEST(Accumulation, KeptBackUntilTheLast) {
  for (const char* learner : {"mlp", "gpt2", "llama_tied", "frozen"})
    for (const int ranks : {2, 3, 4})
      expect_reference({.learner = learner, .ranks = ranks, .turns = kReduceLast});
}

// Alone there is nobody to keep gradients back from: they are added one by one.
TEST(Accumulation, AloneNoSyncChangesNothing) {
  expect_reference({.learner = "gpt2", .ranks = 1, .turns = kReduceLast});
}

TEST(Accumulation, Mixtures) {
  for (const Turns& turns : {kMixture, kLate})
    for (const int ranks : {2, 3}) expect_reference({.learner = "gpt2", .ranks = ranks, .turns = turns});
}

TEST(Accumulation, EveryStrategyAndOptimizer) {
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    for (const Turns& turns : {kReduceEach, kReduceLast, kMixture})
      expect_reference(
          {.learner = "gpt2", .ranks = 2, .turns = turns, .strategy = strategy, .optim = Optim::fused_adamw});
}

TEST(Accumulation, ReplicatedParameters) {
  for (const Turns& turns : {kReduceEach, kReduceLast, kMixture})
    expect_reference({.learner = "gpt2", .ranks = 3, .turns = turns, .replicate_below = 100});
}

TEST(Accumulation, SumsWhereAsked) {
  for (const int ranks : {1, 2, 3})
    for (const Turns& turns : {kReduceEach, kReduceLast})
      expect_reference({.learner = "mlp", .ranks = ranks, .turns = turns, .op = ReduceOp::sum});
}

// Which of its branches is used depends on the batch: all of them, some, on some ranks only.
struct Branches : Learner {
  Branches() {
    const SeededHere seeded(5);
    in = register_module("in", torch::nn::Linear(6, 20));
    left = register_module("left", torch::nn::Linear(20, 20));
    right = register_module("right", torch::nn::Linear(20, 20));
    out = register_module("out", torch::nn::Linear(20, 3));
    never = register_module("never", torch::nn::Linear(20, 20));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(50 + index));
    return {torch::randn({4, 6}, gen), torch::full({}, index)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    const auto index = batch[1].item<int64_t>();
    auto x = in(batch[0]).tanh();
    if (index % 3 != 0) x = left(x).tanh();
    if (index % 4 == 1) x = right(x).tanh();
    return out(x).square().mean();
  }
  torch::nn::Linear in{nullptr}, left{nullptr}, right{nullptr}, out{nullptr}, never{nullptr};
};

// Gathers follow the program, so the ranks of a group must take the same branches; here they do since W
// microbatches of one turn get one index.
struct SameBranches : Branches {
  explicit SameBranches(int ranks) : ranks(ranks) {}
  std::vector<Tensor> batch(int64_t index) const override {
    auto made = Branches::batch(index);
    made[1] = torch::full({}, index / ranks);
    return made;
  }
  int ranks;
};

void expect_branches(const WrapPolicy& wrap, int ranks, const Turns& turns) {
  expect_reference({.learner = "branches", .ranks = ranks, .turns = turns, .wrap = wrap},
                   [ranks] { return std::make_shared<SameBranches>(ranks); });
}

TEST(Accumulation, UnusedUnitsDifferFromStepToStep) {
  for (const int ranks : {1, 2, 3}) expect_branches(by_size(60), ranks, {Turn::reduce});
}

TEST(Accumulation, UnusedUnitsDifferFromTurnToTurn) {
  for (const int ranks : {1, 2, 3})
    for (const Turns& turns : {kReduceEach, kReduceLast}) expect_branches(by_size(60), ranks, turns);
  for (const int ranks : {2, 3}) expect_branches(by_size(60), ranks, kMixture);
}

// One unit: its uses are the same every time, what is used of it is not.
TEST(Accumulation, UnusedParametersOfOneUnitDifferFromStepToStep) {
  for (const int ranks : {1, 2, 3}) expect_branches(whole_model(), ranks, {Turn::reduce});
}

TEST(Accumulation, UnusedParametersOfOneUnitDifferFromTurnToTurn) {
  for (const int ranks : {1, 2, 3})
    for (const Turns& turns : {kReduceEach, kReduceLast}) expect_branches(whole_model(), ranks, turns);
}

// Ranks may use different parameters of one unit.
TEST(Accumulation, UnusedParametersOfOneUnitDifferFromRankToRank) {
  for (const int ranks : {2, 3})
    for (const Turns& turns : {Turns{Turn::reduce}, kReduceEach, kReduceLast})
      expect_reference({.learner = "branches", .ranks = ranks, .turns = turns, .wrap = whole_model()},
                       [] { return std::make_shared<Branches>(); });
}

TEST(Accumulation, WhatNobodyUsedHasNoGradient) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(std::make_shared<SameBranches>(2)),
                               {.wrap = by_size(100)});
      for (const Turn turn : kReduceLast) backward(model, 4 + world.rank(), turn);
      for (const auto& item : model.named_parameters()) {
        const bool used = item.key().rfind("never", 0) != 0 && item.key().rfind("right", 0) != 0;
        require(item.value().grad().defined() || !used, item.key() + " has a gradient");
        require(!item.value().grad().defined() || used, item.key() + " has none");
      }
    });
}

TEST(Accumulation, NoGradientShowsBeforeItIsReduced) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    const auto any = [&] {
      for (const auto& slice : model.parameters())
        if (slice.grad().defined()) return true;
      return false;
    };
    backward(model, world.rank(), Turn::keep_back);
    require(!any(), "no_sync shows no gradient");
    require(model.memory_stats().reduce_scatters == 0, "and reduces none");
    backward(model, world.rank(), Turn::reduce);
    require(any(), "the backward after it does");
  });
}

TEST(Accumulation, NoSyncInsideNoSyncEndsWithTheOuterOne) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    {
      const auto outer = model.no_sync();
      backward(model, world.rank(), Turn::keep_back);
      backward(model, world.rank(), Turn::reduce);  // inside the outer one still
      require(model.memory_stats().reduce_scatters == 0, "nothing is reduced");
    }
    backward(model, world.rank(), Turn::reduce);
    require(model.memory_stats().reduce_scatters > 0, "all is");
  });
}

TEST(Accumulation, NoSyncOfABlockEndsThoughTheRootWasSharded) {
  run_ranks(2, [](World& world) {
    torch::nn::Linear block(6, 6);
    torch::nn::Sequential root(block, torch::nn::Linear(6, 2));
    auto inner = fully_shard(world, block);
    auto kept_back = std::make_unique<NoSync>(inner.engine());
    auto outer = fully_shard(world, root);
    kept_back = nullptr;
    outer(torch::ones({1, 6}) * world.rank()).sum().backward();
    require(outer.parameters()[0].grad().defined(), "reduced");
  });
}

// A step from gradients that zero_grad() has dropped is a step from none.
TEST(Accumulation, ZeroGradForgetsWhatWasReduced) {
  for (const int ranks : {1, 2, 3}) {
    const Accumulated run{.learner = "gpt2", .ranks = ranks, .turns = {Turn::reduce}};
    const State wanted = train_reference(*make_learner("gpt2"), run);
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
      for (int step = 0; step < kAccumulationSteps; ++step) {
        backward(model, 100 + step, Turn::reduce);
        step % 2 == 0 ? model.zero_grad() : optimizer->zero_grad();
        backward(model, batch_number(run, step, 0, world.rank()), Turn::reduce);
        optimizer->step();
        // Both ways of forgetting: none, and zeros.
        optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
      }
      require_same(state_of(model), wanted);
    });
  }
}

TEST(Accumulation, ZeroGradForgetsWhatWasKeptBack) {
  const Accumulated run{.learner = "mlp", .ranks = 2, .turns = {Turn::reduce}};
  const State wanted = train_reference(*make_learner("mlp"), run);
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
    for (int step = 0; step < kAccumulationSteps; ++step) {
      backward(model, 100 + step, Turn::keep_back);
      model.zero_grad();
      backward(model, batch_number(run, step, 0, world.rank()), Turn::reduce);
      optimizer->step();
      model.zero_grad();
    }
    require_same(state_of(model), wanted);
  });
}

// Reduced each time, gradients are 1/W; kept back, they are whole on every rank until the reduce.
TEST(Accumulation, MemoryOfGradients) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
    const int64_t shard = model.memory_stats().parameter_bytes;
    require(model.memory_stats().gradient_bytes == 0, "none before the first backward");
    for (int step = 0; step < 3; ++step) backward(model, world.rank(), Turn::reduce);
    require(model.memory_stats().gradient_bytes == shard, "one gradient shard, however many microbatches");
    require(model.memory_stats().buffer_bytes < 4 * shard, "on the way: less than whole gradients");
    model.zero_grad();
    const int64_t before = model.memory_stats().current_bytes;
    backward(model, world.rank(), Turn::keep_back);
    const MemoryStats kept = model.memory_stats();
    require(kept.current_bytes >= before + 4 * shard,
            "whole gradients are kept back and counted: " + std::to_string(kept.current_bytes - before) +
                " bytes more, not " + std::to_string(4 * shard));
    backward(model, world.rank(), Turn::keep_back);
    require(model.memory_stats().current_bytes == kept.current_bytes,
            "one whole gradient, not one per batch");
    backward(model, world.rank(), Turn::reduce);
    require(model.memory_stats().current_bytes <= before + shard,
            "given back by the reduce, but for the shard");
    require(model.memory_stats().peak_bytes >= kept.current_bytes, "the peak remembers");
  });
}

// Units are reduced while backward goes on, as in a program that never kept gradients back.
TEST(Accumulation, NoSyncInTheFirstStepDoesNotSpoilThePlan) {
  const auto buffers = [](Turn first) {
    int64_t bytes = 0;
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_gpt2(6, 16), {.wrap = by_size(200)});
      backward(model, world.rank(), first);
      for (int step = 1; step < 6; ++step) {
        backward(model, world.rank(), Turn::reduce);
        model.zero_grad();
      }
      if (world.rank() == 0) bytes = model.memory_stats().buffer_bytes;
    });
    return bytes;
  };
  EXPECT_EQ(buffers(Turn::keep_back), buffers(Turn::reduce));
}

TEST(Accumulation, TwoForwardsOneBackward) {
  const auto make = [] { return make_learner("gpt2"); };
  expect_same(make,
              [](auto& model, const Moment& now) {
                const Learner& learner = model.module();
                const Tensor first = model(learner.batch(now.index()));
                model.backward(first + model(learner.batch(100 + now.index())));
              },
              {{"sizes", {.wrap = by_size(200)}}}, {.optimizer = optimizer_of(Optim::sgd)});
}

}  // namespace
}  // namespace fsdp::testing
