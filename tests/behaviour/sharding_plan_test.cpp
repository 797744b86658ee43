// Promise: plan_sharding() says, without ranks and without the model's memory, what fully_shard() will hold.
#include <gmock/gmock.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

// What a really sharded model of `ranks` ranks holds, against its plan.
void check_plan(World& world, const std::string& name, const ShardOptions& options) {
  const auto fresh = on_meta([&] { return make_learner(name); });
  const PlannedRanks ranks{.ranks = world.size()};
  const ShardingPlan plan = plan_sharding(*fresh, ranks, options);

  auto model = fully_shard(world, make_learner(name), options);
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    model(model.module().batch(step * world.size() + world.rank())).backward();
  }
  const MemoryStats stats = model.memory_stats();
  const auto same = [&](const std::string& what, int64_t found, int64_t planned) {
    require(found == planned,
            name + ", " + what + ": " + std::to_string(found) + ", planned " + std::to_string(planned));
  };
  same("units", static_cast<int64_t>(model.unit_counts().size()), static_cast<int64_t>(plan.units.size()));
  for (size_t i = 0; i < plan.units.size(); ++i)
    require(model.unit_counts()[i].name == plan.units[i].name, "the unit's name: " + plan.units[i].name);
  same("parameters", model.num_parameters(), plan.parameters());
  same("shards", stats.parameter_bytes, plan.shard_bytes());
  same("gradient shards", stats.gradient_bytes, plan.gradient_bytes());
  const bool reshards =
      options.strategy == Strategy::full_shard || options.strategy == Strategy::hybrid_shard;
  const size_t slots = reshards ? static_cast<size_t>(options.limit_all_gathers) : plan.units.size();
  require(stats.arena_bytes <= plan.slot_bytes(slots), name +
                                                           ", slots: " + std::to_string(stats.arena_bytes) +
                                                           " of " + std::to_string(plan.slot_bytes(slots)));
  require((stats.arena_bytes == 0) == (plan.slot_bytes(slots) == 0), name + ": slots or none");
}

class ShardingPlanOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardingPlanOf, ::testing::Values(1, 2, 3));

TEST_P(ShardingPlanOf, EqualsTheShardedModel) {
  run_ranks(GetParam(), [](World& world) {
    for (const char* name : {"mlp", "gpt2", "llama_tied", "frozen"})
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
        for (const bool shared : {false, true})
          check_plan(world, name, {.strategy = strategy, .share_shards = shared});
  });
}

TEST_P(ShardingPlanOf, FollowsPrecisionAndUnits) {
  run_ranks(GetParam(), [](World& world) {
    check_plan(world, "gpt2", {.precision = bf16()});
    check_plan(world, "gpt2", {.precision = bf16_true()});
    check_plan(world, "gpt2", {.wrap = by_size(300), .min_unit_bytes = 8192});
    check_plan(world, "gpt2", {.max_unit_bytes = 4096});
    check_plan(world, "gpt2", {.replicate_below = 40});
    check_plan(world, "llama", {.limit_all_gathers = 3});
  });
}

TEST(ShardingPlan, HasRowsOfHybridStrategies) {
  run_ranks(4, [](World& world) {
    const ShardOptions options{.strategy = Strategy::hybrid_shard, .shard_size = 2};
    check_plan(world, "gpt2", options);
    EXPECT_EQ(plan_sharding(*make_learner("gpt2"), {.ranks = 4}, options).ranks_per_row, 2);
  });
  const ShardOptions hybrid{.strategy = Strategy::hybrid_shard};
  EXPECT_EQ(plan_sharding(*make_learner("mlp"), {.ranks = 8, .ranks_per_host = 4}, hybrid).ranks_per_row, 4);
}

TEST(ShardingPlan, ChangesNothing) {
  const auto learner = make_learner("gpt2");
  const State before = state_of(*learner);
  plan_sharding(*learner, {.ranks = 4}, {});
  EXPECT_EQ(difference(state_of(*learner), before), "");
  EXPECT_NO_THROW(learner->forward(learner->batch(0)).backward());
}

TEST(ShardingPlan, AddsUpUnitsThatAreAliveTogether) {
  ShardingPlan plan;
  for (const int64_t bytes : {10, 1, 8, 7, 2})
    plan.units.push_back(
        {.name = "unit", .parameters = bytes, .slot_bytes = bytes, .buffer_bytes = 2 * bytes});
  EXPECT_EQ(plan.parameters(), 28);
  EXPECT_EQ(plan.slot_bytes(1), 10);
  EXPECT_EQ(plan.slot_bytes(2), 15) << "units side by side: 8 and 7";
  EXPECT_EQ(plan.buffer_bytes(3), 38);
  EXPECT_EQ(plan.slot_bytes(9), 28) << "more than there are";
  EXPECT_EQ(plan.slot_bytes(0), 0);
}

TEST(ShardingPlan, RefusesNumbersThatFullyShardRefuses) {
  const auto refused = [](const PlannedRanks& ranks, const ShardOptions& options) {
    return refusal([&] { plan_sharding(*make_learner("mlp"), ranks, options); });
  };
  EXPECT_THAT(refused({.ranks = 0}, {}), HasSubstr("for 0 ranks"));
  EXPECT_THAT(refused({.ranks = 4}, {.strategy = Strategy::hybrid_shard, .shard_size = 3}),
              HasSubstr("rows of 3 ranks do not divide 4 ranks"));
}

}  // namespace
}  // namespace fsdp::testing
