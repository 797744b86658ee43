// Promise: what is reduced, when, over whom and divided by what is the user's choice: of one unit, of a row
// of the mesh, while the backward goes on. Gradients are those of a plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "behaviour/small_net.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr int kHeldSteps = 6;

Tensor held_batch(int64_t number) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number) + 77);
  return torch::randn({4, 6}, generator);
}

bool of_block1(const std::string& name) { return name.starts_with("block1."); }

// Three microbatches a step: the first two hold back a block, all of it, or nothing.
enum class Held { nothing, block, all };
constexpr std::array kHeldTurns = {Held::block, Held::all, Held::block, Held::nothing};

State held_reference(int ranks) {
  auto net = make_same_net();
  PlainTrainer trainer(*net, ranks);
  const auto optimizer = make_optimizer(Optim::fused_adamw, trainer.parameters());
  for (int step = 0; step < kHeldSteps; ++step) {
    for (size_t turn = 0; turn < kHeldTurns.size(); ++turn) {
      trainer.collect([&](int rank) {
        return loss_of(net->forward(held_batch((step * 4 + static_cast<int64_t>(turn)) * ranks + rank)));
      });
      if (kHeldTurns[turn] == Held::nothing) trainer.reduce();
      if (kHeldTurns[turn] == Held::block)
        trainer.reduce([](const std::string& name) { return !of_block1(name); });
    }
    trainer.step(*optimizer);
  }
  return trainer.state();
}

State held_run(const World& world, ShardOptions options) {
  auto model = fully_shard(world, make_same_net(), options);
  const auto optimizer = make_optimizer(Optim::fused_adamw, model.parameters());
  for (int step = 0; step < kHeldSteps; ++step) {
    for (size_t turn = 0; turn < kHeldTurns.size(); ++turn) {
      std::optional<NoSync> kept;
      if (kHeldTurns[turn] == Held::all) kept.emplace(model.engine());
      if (kHeldTurns[turn] == Held::block) kept.emplace(model.engine(), NoSyncOptions{.module = "block1"});
      const int64_t number = (step * 4 + static_cast<int64_t>(turn)) * world.size() + world.rank();
      loss_of(model(held_batch(number))).backward();
      for (const auto& item : model.named_parameters())
        if (of_block1(item.key()) && kHeldTurns[turn] != Held::nothing)
          require(!item.value().grad().defined(), item.key() + " was held back and has a gradient");
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  return state_of(model);
}

TEST(HeldGradients, OfOneBlock) {
  for (const int ranks : {2, 3, 4}) {
    const State wanted = held_reference(ranks);
    run_ranks(ranks, [&](World& world) {
      for (const bool share : {true, false}) {
        ShardOptions options = sharded_by(by_type<BlockImpl>());
        options.share_shards = share;
        require_same(held_run(world, options), wanted);
      }
    });
  }
}

int64_t all_reduces(const ShardedModel& model) {
  int64_t count = 0;
  for (const OpStats& op : model.comm_stats())
    if (op.op == "all_reduce") count += op.count;
  return count;
}

// The plan of cycles that hold a block back is followed: nothing is asked of other ranks at every boundary.
TEST(HeldGradients, CyclesThatHoldBackArePlannedToo) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_net(), sharded_by(by_type<BlockImpl>()));
    int64_t before = 0;
    for (int step = 0; step < 6; ++step) {
      if (step == 3) before = all_reduces(model);
      {
        const auto kept = model.no_sync({.module = "block1"});
        loss_of(model(held_batch(step))).backward();
      }
      loss_of(model(held_batch(step + 100))).backward();
      model.zero_grad();
    }
    require(all_reduces(model) - before == 3 * 2, "one agreement per backward");
  });
}

TEST(HeldGradients, UnknownModulesAreRefused) {
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, make_net(), sharded_by(by_type<BlockImpl>()));
    require_words(refusal([&] { (void)model.no_sync({.module = "blok1"}); }),
                  "no parameter lies under 'blok1'");
    require_words(refusal([&] { (void)model.no_sync({.module = "block1", .rows_only = true}); }),
                  "leave one of them out");
  });
}

// Values are small whole numbers, so that sums are exact in any order.
Tensor whole_numbers(int64_t number) { return held_batch(number).mul(2).round(); }

struct RowNet : torch::nn::Module {
  RowNet() {
    for (const char* name : {"one", "two", "three"})
      weights.push_back(register_parameter(name, torch::ones({7})));
  }
  // Which weights are used depends on `which`, a bit each.
  Tensor forward(const Tensor& x, unsigned which) {
    Tensor sum = x.sum() * 0;
    for (size_t i = 0; i < weights.size(); ++i)
      if ((which >> i & 1U) != 0) sum = sum + (weights[i] * x.sum()).sum();
    return sum;
  }
  std::vector<Tensor> weights;
};

TEST(HeldGradients, SumsStayInTheRow) {
  run_ranks(4, [](World& world) {
    const auto grads_of = [&](bool in_row, bool hybrid) {
      ShardOptions options{.gradients = ReduceOp::sum};
      options.wrap = [](const ModuleInfo&) { return false; };
      options.max_unit_bytes = 32;  // a unit for each weight
      if (hybrid) options.strategy = Strategy::hybrid_shard, options.shard_size = 2;
      auto model = fully_shard(world, std::make_shared<RowNet>(), options);
      std::vector<State> seen;
      for (int step = 0; step < 5; ++step) {
        for (int turn = 0; turn < 3; ++turn) {
          std::optional<NoSync> kept;
          if (in_row && turn < 2) kept.emplace(model.engine(), NoSyncOptions{.rows_only = true});
          const unsigned which = turn == 0 ? 7U : turn == 1 ? 3U : 1U + 4U * (step % 2);
          model(whole_numbers(step * 12 + turn * 4 + world.rank()), which).backward();
          for (const Tensor& slice : model.parameters())
            require(slice.grad().defined() == (!in_row || turn == 2) || slice.numel() == 0,
                    "gradients are shown when they are summed over the rows");
        }
        State now;
        for (const auto& item : model.named_parameters()) now[item.key()] = item.value().grad().clone();
        seen.push_back(now);
        model.zero_grad();
      }
      return seen;
    };
    const auto wanted = grads_of(false, true);
    const auto found = grads_of(true, true);
    for (size_t i = 0; i < wanted.size(); ++i) require_same(found[i], wanted[i]);
    grads_of(false, false);
  });
}

TEST(HeldGradients, SumsInARowAreFewerOverRows) {
  run_ranks(4, [](World& world) {
    const auto crossings = [&](bool in_row) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.strategy = Strategy::hybrid_shard;
      options.shard_size = 2;
      auto model = fully_shard(world, make_same_net(), options);
      int64_t before = 0;
      for (int step = 0; step < 4; ++step) {
        before = all_reduces(model);
        for (int turn = 0; turn < 3; ++turn) {
          std::optional<NoSync> kept;
          if (in_row && turn < 2) kept.emplace(model.engine(), NoSyncOptions{.rows_only = true});
          loss_of(model(held_batch(turn))).backward();
        }
      }
      return all_reduces(model) - before;
    };
    // Four units, and one agreement per backward.
    require(crossings(false) == 3 * (4 + 1), std::to_string(crossings(false)));
    require(crossings(true) == 4 + 3, std::to_string(crossings(true)));
  });
}

TEST(HeldGradients, AreDividedByTheFactor) {
  for (const int ranks : {1, 2, 3})
    for (const double factor : {1.0, 3.0, 0.5}) {
      auto net = make_same_net();
      PlainTrainer trainer(*net, ranks, {.divide_by = factor});
      trainer.backward([&](int rank) { return loss_of(net->forward(held_batch(rank))); });
      trainer.backward([&](int rank) { return loss_of(net->forward(held_batch(rank + 10))); });
      const State wanted = trainer.gradients();
      run_ranks(ranks, [&](World& world) {
        for (const auto strategy : {Strategy::full_shard, Strategy::no_shard}) {
          ShardOptions options = sharded_by(by_type<BlockImpl>());
          options.strategy = strategy;
          options.gradient_divide_factor = factor;
          auto model = fully_shard(world, make_same_net(), options);
          loss_of(model(held_batch(world.rank()))).backward();
          loss_of(model(held_batch(world.rank() + 10))).backward();
          for (const auto& item : model.named_parameters())
            for (const auto& shard : model.parameter_info(item.key()).shards)
              if (shard.is_local)
                require(item.value().grad().equal(
                            wanted.at(item.key()).flatten().narrow(0, shard.start, shard.size)),
                        item.key() + " is divided by something else");
        }
      });
    }
  run_ranks(1, [](World& world) {
    require_words(refusal([&] { fully_shard(world, make_net(), {.gradient_divide_factor = 0.0}); }),
                  "gradient_divide_factor 0");
  });
}

// --- keep_gathered()

int64_t gathers_in(const ShardedModel& model) {
  int64_t count = 0;
  for (const UnitCounts& unit : model.unit_counts()) count += unit.gathers;
  return count;
}

TEST(HeldGradients, UnitsStayGatheredForTheNextMicrobatch) {
  run_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.share_shards = false;
    options.limit_all_gathers = 1;
    auto model = fully_shard(world, make_same_net(), options);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const auto step = [&] {
      const int64_t before = gathers_in(model);
      {
        const auto kept = model.keep_gathered();
        for (int i = 0; i < 3; ++i) loss_of(model(held_batch(i))).backward();
      }
      optimizer.step();
      model.zero_grad();
      return gathers_in(model) - before;
    };
    step();  // recorded
    require(step() == 4, "four units, once a step");
    require(step() == 4, "and after it");
    const auto kept = model.keep_gathered();
    for (int i = 0; i < 3; ++i) {
      const torch::NoGradGuard no_grad;
      model(held_batch(0));  // the first is recorded
    }
    const int64_t before = gathers_in(model);
    loss_of(model(held_batch(0))).backward();
    require(gathers_in(model) == before, "an evaluation keeps them too");
    model.reshard("block1");
    loss_of(model(held_batch(0))).backward();
    require(gathers_in(model) == before + 1, "one was released by hand");
    require_words(refusal([&] { optimizer.step(); }), "end that scope before the optimizer steps");
  });
}

TEST(HeldGradients, KeepingUnitsGatheredChangesNoBits) {
  std::vector<Variant> variants;
  for (const int slots : {0, 1, 2, 3})
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
      variants.push_back({"slots " + std::to_string(slots), sharded_by(by_type<BlockImpl>())});
      variants.back().options.strategy = strategy;
      variants.back().options.limit_all_gathers = slots;
    }
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                std::optional<KeepGathered> kept;
                if constexpr (std::is_base_of_v<ShardedModel, std::remove_cvref_t<decltype(model)>>)
                  if (now.step != 2) kept.emplace(model.engine());
                for (int64_t i = 0; i < 1 + now.step % 3; ++i)
                  model.backward(loss_of(model(now.randn({4, 6}, i))));
                const torch::NoGradGuard no_grad;
                if (now.step % 2 == 1) model.see(model(now.randn({2, 6}, 9)));
              },
              variants, {.steps = 8, .ranks = {1, 2, 3}});
}

// --- on_gradient()

State told_run(const World& world, ShardOptions options, bool told) {
  auto model = fully_shard(world, make_same_net(), options);
  int calls = 0;
  const auto update = [](Tensor& slice) {
    const torch::NoGradGuard no_grad;
    slice.detach().sub_(slice.grad(), 0.1);
    slice.mutable_grad() = Tensor();
  };
  if (told)
    model.on_gradient([&](const std::string&, Tensor& slice) {
      ++calls;
      update(slice);
    });
  for (int step = 0; step < kHeldSteps; ++step) {
    Tensor loss = loss_of(model(held_batch(step * world.size() + world.rank())));
    calls = 0;
    loss.backward();
    int owned = 0;
    for (Tensor& slice : model.parameters()) {
      ++owned;  // also slices without elements
      if (told) require(!slice.grad().defined(), "it was told and dropped: step " + std::to_string(step));
      if (!told) update(slice);
    }
    if (told) require(calls == owned, std::to_string(calls) + " calls for " + std::to_string(owned));
  }
  return state_of(model);
}

TEST(HeldGradients, WhoIsToldMayUpdateWhileTheBackwardGoesOn) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      for (const bool share : {true, false})
        for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
          for (const bool narrow : {false, true}) {
            ShardOptions options = sharded_by(by_type<BlockImpl>());
            options.share_shards = share;
            options.strategy = strategy;
            if (narrow) options.precision = bf16();
            require_same(told_run(world, options, true), told_run(world, options, false));
          }
    });
}

// The gradient memory of a unit is free before the next one's is needed.
TEST(HeldGradients, GradientsThatWereToldAreGoneBeforeTheBackwardEnds) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.share_shards = false;
      auto model = fully_shard(world, make_same_net(), options);
      std::vector<std::string> order;
      size_t before_in = 0;
      model.on_gradient([&](const std::string& name, Tensor& slice) {
        order.push_back(name);
        slice.mutable_grad() = Tensor();
      });
      for (int step = 0; step < 4; ++step) {
        order.clear();
        Tensor h = model.run([&](NetImpl& net) {
          Tensor in = net.in(held_batch(step));
          in.register_hook([&](const Tensor& grad) {  // of the first layer's result, the last but one
            before_in = order.size();
            return grad;
          });
          for (auto& block : net.blocks) in = block(in);
          return net.out(in);
        });
        loss_of(h).backward();
      }
      require(before_in > 0, "blocks are told before the backward reaches the first layer");
      require(order.size() >= before_in, "and the rest later");
    });
}

}  // namespace
}  // namespace fsdp::testing
