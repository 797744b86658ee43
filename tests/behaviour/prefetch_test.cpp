// Promise: when units are gathered, by policy or by hand, is the user's choice, and no bit depends on it.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

TEST(Prefetch, EveryPolicyGivesTheSameBits) {
  std::vector<Variant> variants;
  for (const auto policy : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
    for (const int ahead : {0, 1, 3})
      for (const int slots : {0, 1, 2, 3}) {
        variants.push_back({"policy " + std::to_string(static_cast<int>(policy)) + ", ahead " +
                                std::to_string(ahead) + ", slots " + std::to_string(slots),
                            sharded_by(by_type<BlockImpl>())});
        variants.back().options.backward_prefetch = policy;
        variants.back().options.forward_prefetch = ahead;
        variants.back().options.limit_all_gathers = slots;
      }
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                model.backward(loss_of(model(now.randn({4, 6}))));
              },
              variants, {.steps = 4, .ranks = {1, 2, 3}});
}

// Also over the rows of a mesh.
TEST(Prefetch, PoliciesOverRows) {
  std::vector<Variant> variants;
  for (const auto policy : {BackwardPrefetch::post, BackwardPrefetch::none}) {
    variants.push_back({"rows", sharded_by(by_type<BlockImpl>())});
    variants.back().options.strategy = Strategy::hybrid_shard;
    variants.back().options.shard_size = 2;
    variants.back().options.backward_prefetch = policy;
  }
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                model.backward(loss_of(model(now.randn({4, 6}))));
              },
              variants, {.steps = 4, .ranks = {4}});
}

// How often the units of blocks were gathered so far.
int64_t gathers_of(const ShardedModel& model) {
  int64_t count = 0;
  for (const UnitCounts& unit : model.unit_counts())
    if (unit.name.find("block") != std::string::npos) count += unit.gathers;
  return count;
}

TEST(Prefetch, ByHandAUnitIsThereWhenItIsUsed) {
  run_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.share_shards = false;
    auto model = fully_shard(world, make_net(), options);
    const auto step = [&] {
      const int64_t before = gathers_of(model);
      model(torch::ones({2, 6})).sum().backward();
      return gathers_of(model) - before;
    };
    for (int i = 0; i < 3; ++i) step();
    const int64_t usual = step();
    const int64_t before = gathers_of(model);
    model.unshard("block1");
    require(gathers_of(model) == before + 1, "it is gathered at once");
    model.unshard("block1");
    require(gathers_of(model) == before + 1, "and once only");
    require(step() == usual - 1, "and not again when it is used");
    require(step() == usual, "the next step is as before");
    model.unshard();
    model.reshard("block1");
    require(step() == usual - 2, "what was released is gathered again");
    require_words(refusal([&] { model.unshard("blok1"); }), "no parameter lies under 'blok1'");
  });
}

TEST(Prefetch, ByHandNoBitChanges) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const auto by_hand = [&](const char* path, bool back) {
      if constexpr (std::is_base_of_v<ShardedModel, std::remove_cvref_t<decltype(model)>>) {
        model.unshard(path);
        if (back) model.reshard(path);
      }
    };
    by_hand(now.step % 2 == 0 ? "block2" : "", now.step == 3);
    const Tensor y = model.run([&](NetImpl& net) {
      Tensor h = net.in(now.randn({4, 6}));
      by_hand("block1", false);
      for (Block& block : net.blocks) h = block(h);
      by_hand("block0", now.step % 3 == 0);
      return net.out(h);
    });
    by_hand("block2", false);
    model.backward(loss_of(y));
  });
}

// What an optimizer wrote is gathered, though the unit was there before.
TEST(Prefetch, ByHandSeesWhatIsWrittenLater) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_net(), sharded_by(by_type<BlockImpl>()));
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({2, 6});
    const Tensor before = model(x);
    model.unshard();
    for (const Tensor& slice : model.parameters()) slice.detach().mul_(2);
    require(!model(x).equal(before), "new values are read");
  });
}

TEST(Prefetch, PoliciesHaveNames) {
  EXPECT_EQ(parse_backward_prefetch("BACKWARD_PRE"), BackwardPrefetch::pre);
  EXPECT_EQ(parse_backward_prefetch("backward_post"), BackwardPrefetch::post);
  EXPECT_EQ(parse_backward_prefetch("None"), BackwardPrefetch::none);
  EXPECT_THAT(refusal([] { parse_backward_prefetch("later"); }), HasSubstr("backward_pre"));
}

}  // namespace
}  // namespace fsdp::testing
