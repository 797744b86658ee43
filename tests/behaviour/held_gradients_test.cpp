// Promise: what is reduced, when, over whom and divided by what is the user's choice: of one unit, or of a
// row of the mesh. Gradients are those of a plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "behaviour/small_net.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr int kHeldSteps = 6;

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
        return loss_of(net->forward(net_batch((step * 4 + static_cast<int64_t>(turn)) * ranks + rank)));
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
      loss_of(model(net_batch(number))).backward();
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
        loss_of(model(net_batch(step))).backward();
      }
      loss_of(model(net_batch(step + 100))).backward();
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
Tensor whole_numbers(int64_t number) { return net_batch(number).mul(2).round(); }

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
          loss_of(model(net_batch(turn))).backward();
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
      trainer.backward([&](int rank) { return loss_of(net->forward(net_batch(rank))); });
      trainer.backward([&](int rank) { return loss_of(net->forward(net_batch(rank + 10))); });
      const State wanted = trainer.gradients();
      run_ranks(ranks, [&](World& world) {
        for (const auto strategy : {Strategy::full_shard, Strategy::no_shard}) {
          ShardOptions options = sharded_by(by_type<BlockImpl>());
          options.strategy = strategy;
          options.gradient_divide_factor = factor;
          auto model = fully_shard(world, make_same_net(), options);
          loss_of(model(net_batch(world.rank()))).backward();
          loss_of(model(net_batch(world.rank() + 10))).backward();
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

}  // namespace
}  // namespace fsdp::testing
