// Promise: inside keep_gathered() units are gathered once for several microbatches, and no bits change.
#include <gtest/gtest.h>

#include "behaviour/small_net.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

int64_t gathers_in(const ShardedModel& model) {
  int64_t count = 0;
  for (const UnitCounts& unit : model.unit_counts()) count += unit.gathers;
  return count;
}

TEST(KeptGathered, UnitsStayGatheredForTheNextMicrobatch) {
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
        for (int i = 0; i < 3; ++i) loss_of(model(net_batch(i))).backward();
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
      model(net_batch(0));  // the first is recorded
    }
    const int64_t before = gathers_in(model);
    loss_of(model(net_batch(0))).backward();
    require(gathers_in(model) == before, "an evaluation keeps them too");
    model.reshard("block1");
    loss_of(model(net_batch(0))).backward();
    require(gathers_in(model) == before + 1, "one was released by hand");
    require_words(refusal([&] { optimizer.step(); }), "end that scope before the optimizer steps");
  });
}

TEST(KeptGathered, KeepingUnitsGatheredChangesNoBits) {
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

}  // namespace
}  // namespace fsdp::testing
