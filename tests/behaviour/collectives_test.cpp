// Promise: steps that repeat issue the collectives they need and no others, whatever a step is made of, and
// no bit depends on it.
#include <gtest/gtest.h>

#include <random>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int64_t kUnits = 4;  // of NetImpl, by its blocks

struct Collectives {
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
};

Collectives collectives_of(const ShardedModel& model) {
  const MemoryStats stats = model.memory_stats();
  Collectives all{.all_gathers = stats.all_gathers, .reduce_scatters = stats.reduce_scatters};
  for (const OpStats& one : model.comm_stats())
    if (one.op == "all_reduce") all.all_reduces += one.count;
  return all;
}

ShardOptions blocks_on(bool shared) {
  ShardOptions options = sharded_by(by_type<BlockImpl>());
  options.share_shards = shared;
  return options;
}

// Of steps [warm_up, warm_up + counted) together, on two ranks.
Collectives count(const std::function<void(Sharded<NetImpl>&, int)>& step, int warm_up, int counted = 1,
                  bool shared = true) {
  Collectives found;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make_same_net(), blocks_on(shared));
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    Collectives before;
    for (int s = 0; s < warm_up + counted; ++s) {
      if (s == warm_up) before = collectives_of(model);
      step(model, s);
      optimizer.step();
      optimizer.zero_grad();
    }
    const Collectives after = collectives_of(model);
    if (world.rank() == 0)
      found = {.all_gathers = after.all_gathers - before.all_gathers,
               .reduce_scatters = after.reduce_scatters - before.reduce_scatters,
               .all_reduces = after.all_reduces - before.all_reduces};
  });
  return found;
}

// One step of an attack by the gradients of inputs.
template <class Model>
Tensor attacked(Model& model, const Tensor& clean) {
  const Tensor x = clean.detach().requires_grad_();
  return x.detach() + 0.1 * torch::autograd::grad({loss_of(model(x))}, {x})[0].sign();
}

TEST(Collectives, GradientsOfInputsReduceNothing) {
  const auto attack_and_train = [](auto& model, int) {
    Tensor x = net_batch(0);
    for (int i = 0; i < 5; ++i) x = attacked(model, x);
    loss_of(model(x.requires_grad_())).backward();  // reads the units that the attacks read
  };
  const Collectives step = count(attack_and_train, 3);
  EXPECT_EQ(step.reduce_scatters, kUnits);
  EXPECT_EQ(step.all_reduces, 6) << "one agreement per backward";
  const Collectives alone = count([](auto& model, int) { attacked(model, net_batch(0)); }, 3);
  EXPECT_EQ(alone.reduce_scatters, 0);
  // backward() to an input is the same, and to a parameter is not.
  const auto to_input = [](auto& model, int) {
    const Tensor x = net_batch(0).requires_grad_();
    torch::autograd::backward({loss_of(model(x))}, {}, false, false, {x});
  };
  EXPECT_EQ(count(to_input, 3).reduce_scatters, 0);
  const auto to_parameter = [](auto& model, int) {
    torch::autograd::backward({loss_of(model(net_batch(0)))}, {}, false, false, {model.module().in->weight});
  };
  EXPECT_GT(count(to_parameter, 3).reduce_scatters, 0);
}

TEST(Collectives, AnEvaluationBetweenForwardAndBackwardIsPlanned) {
  for (const bool shared : {true, false}) {
    const auto step_with = [](int evaluations) {
      return [evaluations](auto& model, int) {
        const Tensor loss = loss_of(model(net_batch(0)));
        for (int i = 0; i < evaluations; ++i) {
          const at::NoGradGuard no_grad;
          model(net_batch(1));
        }
        loss.backward();
      };
    };
    const Collectives plain = count(step_with(0), 3, 1, shared);
    const Collectives found = count(step_with(1), 3, 1, shared);
    EXPECT_EQ(found.all_reduces, plain.all_reduces);
    EXPECT_EQ(found.reduce_scatters, plain.reduce_scatters);
    EXPECT_LE(found.all_gathers, plain.all_gathers + kUnits) << "each unit once more";
    // Every second step, each kind has its plan.
    const auto in_turn = [&](auto& model, int s) { step_with(s % 2)(model, s); };
    EXPECT_EQ(count(in_turn, 6, 2, shared).all_reduces, 2 * plain.all_reduces);
  }
}

// Calls of the blocks named by `way`, in this order.
template <class Model>
Tensor call_in_order(Model& model, const Tensor& x, const std::vector<size_t>& way) {
  return model.run([&](NetImpl& net) {
    Tensor h = net.in(x);
    for (const size_t i : way) h = net.blocks[i](h);
    return net.out(h);
  });
}

// 60 cycles, in turn: blocks 0, 1, 2 and 0 called up to 15 times each.
std::vector<size_t> way_of_length(int step) {
  std::vector<size_t> way;
  for (int i = 0; i <= step % 60; ++i) way.push_back(static_cast<size_t>(i) % 3);
  return way;
}

TEST(Collectives, ManyLengthsAreAllPlanned) {
  const Collectives found = count(
      [](auto& model, int s) { loss_of(call_in_order(model, net_batch(s), way_of_length(s))).backward(); },
      120, 60);
  EXPECT_EQ(found.all_reduces, 60) << "one agreement per backward";
}

// A model of more blocks, some of which are left out, others in every step.
struct TallImpl : torch::nn::Module {
  TallImpl() {
    for (int i = 0; i < 16; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(6)));
  }
  Tensor forward(const Tensor& x, int step) {
    std::mt19937 dice(static_cast<unsigned>(step) + 5);
    Tensor h = x;
    for (auto& block : blocks)
      if (dice() % 5 != 0) h = block(h);
    return h;
  }
  std::vector<Block> blocks;
};

std::shared_ptr<TallImpl> make_tall() { return std::make_shared<TallImpl>(); }

// Before: one all-reduce at every boundary of every backward, 15 or so.
TEST(Collectives, CyclesThatNeverRepeatAskLittle) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_seeded(make_tall), sharded_by(by_type<BlockImpl>()));
    const auto run = [&](int from, int to) {
      const int64_t before = collectives_of(model).all_reduces;
      for (int s = from; s < to; ++s) {
        loss_of(model(net_batch(s), s)).backward();
        model.zero_grad();
      }
      return collectives_of(model).all_reduces - before;
    };
    run(0, 40);
    const int64_t asked = run(40, 80);
    require(asked < 3 * 40, std::to_string(asked) + " all-reduces in 40 steps");
  });
}

TEST(Collectives, WhateverAStepIsMadeOfChangesNoBits) {
  std::vector<Variant> variants = usual_variants();
  variants.push_back({"zero2", sharded_by(by_type<BlockImpl>())});
  variants.back().options.strategy = Strategy::shard_grad_op;
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                Tensor x = now.randn({4, 6});
                if (now.step % 3 != 2) {
                  x = attacked(model, x);
                  model.see(x);
                }
                const Tensor loss = loss_of(model(x));
                if (now.step % 2 == 0) {
                  const at::NoGradGuard no_grad;
                  model.see(model(now.randn({2, 6}, 1)));
                }
                model.backward(loss);
              },
              variants, {.steps = 12, .ranks = {1, 2, 3}});
  expect_same(make_tall,
              [](auto& model, const Moment& now) {
                model.backward(loss_of(model(now.randn({3, 6}), now.step % 9)));
              },
              {{"blocks", sharded_by(by_type<BlockImpl>())}}, {.steps = 20, .ranks = {1, 2, 3}});
}

// A rank that asks for gradients of inputs where others train is told, or gives zeros: it never hangs.
TEST(Collectives, RanksThatAskForDifferentGradients) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), blocks_on(true));
    for (int s = 0; s < 4; ++s) {
      const Tensor x = net_batch(s).requires_grad_();
      const Tensor loss = loss_of(model(x));
      if (world.rank() == 0)
        loss.backward();
      else
        torch::autograd::grad({loss}, {x});
      const Tensor norm = model.gradient_norms();
      require(norm.min().item<double>() > 0, "rank 0's gradients are everybody's");
      model.zero_grad();
    }
  });
}

TEST(Collectives, KeptUnitsAreGatheredOnceWhereShardsAreShared) {
  for (const bool shared : {true, false}) {
    const Collectives found = count(
        [](auto& model, int) {
          const auto kept = model.keep_gathered();
          for (int i = 0; i < 4; ++i) loss_of(model(net_batch(i))).backward();
        },
        2, 1, shared);
    EXPECT_EQ(found.all_gathers, kUnits);
    EXPECT_EQ(found.all_reduces, 4);
  }
}

}  // namespace
}  // namespace fsdp::testing
