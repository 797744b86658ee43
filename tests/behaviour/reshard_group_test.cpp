// Promise: with reshard_group, a unit stays in parts among a few ranks from forward to backward, and backward
// gathers it there; the numbers are the same.
#include <gtest/gtest.h>

#include "runtime/engine.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kReshardGroupSteps = 6;

struct GroupCase {
  std::string learner;
  int ranks, group;
  Precision precision = {};
};

void PrintTo(const GroupCase& one, std::ostream* out) {
  *out << one.learner << " of " << one.ranks << " ranks in groups of " << one.group;
}

class ReshardGroup : public ::testing::TestWithParam<GroupCase> {};

TEST_P(ReshardGroup, BitsAreThoseOfFullShard) {
  const GroupCase& one = GetParam();
  run_ranks(one.ranks, [&](World& world) {
    const auto train = [&](int group, Strategy strategy) {
      auto model = fully_shard(world, make_learner(one.learner),
                               {.wrap = by_size(200),
                                .strategy = strategy,
                                .precision = one.precision,
                                .reshard_group = group,
                                .shard_size = strategy == Strategy::hybrid_shard ? 4 : 0});
      train_sharded(model, world, kReshardGroupSteps, Optim::fused_adamw);
      return state_of(model);
    };
    const State wanted = train(0, Strategy::full_shard);
    require_same(train(one.group, Strategy::full_shard), wanted);
    if (one.ranks == 8) require_same(train(one.group, Strategy::hybrid_shard), wanted, "hybrid: ");
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReshardGroup,
                         ::testing::Values(GroupCase{"gpt2", 4, 2}, GroupCase{"llama", 4, 2, bf16()},
                                           GroupCase{"lstm", 4, 2}, GroupCase{"convnet", 4, 1},
                                           GroupCase{"mlp", 4, 4}, GroupCase{"frozen", 4, 2},
                                           GroupCase{"gpt2", 8, 2}));

// The bytes that gathers in `group` have moved so far.
int64_t gathered_bytes(const Comm& group) {
  int64_t bytes = 0;
  for (const OpStats& one : group.stats())
    if (one.op == "all_gather") bytes += one.bytes;
  return bytes;
}

TEST(ReshardGroups, MemoryIsAPartFromForwardToBackward) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_gpt2(6, 32), {.reshard_group = 2});
    const int64_t whole = 4 * model.num_parameters();
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      auto loss = model(model.module().batch(world.rank()));
      const auto kept = static_cast<double>(model.memory_stats().overflow_bytes);
      // Not kept: what is still gathered, and what backward does not read.
      require(kept > 0.3 * static_cast<double>(whole) && kept < 0.6 * static_cast<double>(whole),
              "kept " + std::to_string(kept) + " of " + std::to_string(whole));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      require(model.memory_stats().overflow_bytes == 0, "kept after backward");
    }
    at::NoGradGuard no_grad;
    model(model.module().batch(0));
    require(model.memory_stats().overflow_bytes == 0, "kept in an evaluation");
  });
}

TEST(ReshardGroups, WhatBackwardDoesNotReadIsNotKept) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_learner("llama"), {.wrap = by_size(200), .reshard_group = 2});
    std::vector<std::string> kept;
    for (int step = 0; step < 3; ++step) {
      auto loss = model(model.module().batch(world.rank()));
      kept.clear();
      for (const auto& unit : detail::current(model.engine()).units)
        if (unit->saved_bytes() > 0) kept.push_back(unit->name());
      loss.backward();
      model.zero_grad();
    }
    require(kept.size() > 1, "units kept: " + std::to_string(kept.size()));
    for (const std::string& unit : kept)
      require(unit.find("embed_tokens") == std::string::npos, unit + " is kept");
  });
}

TEST(ReshardGroups, BackwardGathersInTheGroup) {
  run_ranks(4, [](World& world) {
    // What a backward gathers in the row, and in groups of two.
    const auto in_backward = [&](int group) {
      auto model = fully_shard(world, make_gpt2(6, 32), {.reshard_group = group});
      detail::Mesh& mesh = detail::current(model.engine()).mesh;
      Comm part = mesh.reshard_group(2);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      std::pair<int64_t, int64_t> bytes;
      for (int step = 0; step < 3; ++step) {
        auto loss = model(model.module().batch(world.rank()));
        const std::pair before{gathered_bytes(mesh.row), gathered_bytes(part)};
        loss.backward();
        bytes = {gathered_bytes(mesh.row) - before.first, gathered_bytes(part) - before.second};
        optimizer.step();
        optimizer.zero_grad();
      }
      return bytes;
    };
    const auto row = in_backward(0), group = in_backward(2), kept = in_backward(1);
    require(row.first > 0 && row.second == 0, "without a group");
    require(group.first == 0 && group.second == row.first, "in a group");
    require(kept.first == 0 && kept.second == 0, "kept");
  });
}

TEST(ReshardGroups, SomeUnitsOnly) {
  run_ranks(4, [](World& world) {
    const State wanted = [&] {
      auto model = fully_shard(world, make_learner("gpt2"), {});
      train_sharded(model, world, kReshardGroupSteps, Optim::sgd);
      return state_of(model);
    }();
    ShardOptions options;
    options.unit = [](const std::string& unit) {
      return unit.find(".h.0") != std::string::npos ? UnitOptions{.reshard_group = 2} : UnitOptions{};
    };
    auto model = fully_shard(world, make_learner("gpt2"), options);
    train_sharded(model, world, kReshardGroupSteps, Optim::sgd);
    require_same(state_of(model), wanted);
  });
}

// Parameters written between two forwards of one backward: the second forward's values are what is kept.
TEST(ReshardGroups, SeveralForwardsAndWhatComesBetween) {
  run_ranks(4, [](World& world) {
    const auto train = [&](int group) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200), .reshard_group = group});
      torch::optim::SGD optimizer(model.parameters(), 0.05);
      for (int step = 0; step < 4; ++step) {
        auto loss = model(model.module().batch(4 * step + world.rank()));
        at::NoGradGuard no_grad;
        if (step == 1)
          for (at::Tensor& slice : model.parameters()) slice.mul_(1.01);
        if (step == 2) model(model.module().batch(0));
        at::AutoGradMode with_grad(true);
        if (step == 1) loss = torch::zeros({});
        loss = loss + model(model.module().batch(99 + world.rank()));
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return state_of(model);
    };
    require_same(train(2), train(0));
  });
}

// Alone there is nobody to keep parts with: the option changes neither what is kept nor a bit.
TEST(ReshardGroups, AloneTheyAreIgnored) {
  run_ranks(1, [](World& world) {
    const auto train = [&](int group) {
      auto model = fully_shard(world, make_learner("mlp"),
                               {.wrap = by_size(200), .precision = bf16(), .reshard_group = group});
      for (const auto& unit : detail::current(model.engine()).units)
        require(!unit->spec.stays_gathered && unit->spec.reshard_group == 0 && !unit->saves_for_backward(),
                unit->name() + " has no group");
      ShardedTwin twin(world, model, optimizer_of(Optim::sgd));
      int64_t slots = 0;
      while (twin.step < kReshardGroupSteps)
        twin.train([&](auto& twin, const Moment&) {
          const at::Tensor loss = twin.loss();
          const MemoryStats stats = twin.memory_stats();
          require(stats.overflow_bytes == 0, "kept: " + std::to_string(stats.overflow_bytes));
          slots = stats.arena_bytes;
          loss.backward();
        });
      return std::pair(state_of(twin), slots);
    };
    const auto [wanted, slots] = train(0);
    for (const int group : {1, 2, 3}) {
      const auto [got, room] = train(group);
      require_same(got, wanted, "group of " + std::to_string(group) + ": ");
      require(room == slots, std::to_string(room) + " bytes of slots, not " + std::to_string(slots));
    }
  });
}

TEST(ReshardGroups, GroupsThatDoNotFitAreRefused) {
  run_ranks(4, [](World& world) {
    const auto said = [&](const ShardOptions& options) {
      return refusal([&] { const auto model = fully_shard(world, make_learner("mlp"), options); });
    };
    const auto odd = said({.reshard_group = 3});
    require(odd.find("reshard_group 3 does not divide the 4 ranks") != std::string::npos, odd);
    const auto whole = said({.strategy = Strategy::no_shard, .reshard_group = 2});
    require(whole.find("with Strategy::no_shard") != std::string::npos, whole);
    ShardOptions both;
    both.unit = [](const std::string&) {
      return UnitOptions{.reshard_after_forward = false, .reshard_group = 2};
    };
    const auto twice = said(both);
    require(twice.find("set one of them") != std::string::npos, twice);
  });
}

}  // namespace
}  // namespace fsdp::testing
