// Promise: when units are gathered, by policy or by hand, is the user's choice, and no bit depends on it.
#include <gmock/gmock.h>

#include <map>
#include <random>

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

// What is gathered when each unit is used: some units, in any order, the same on every rank.
using Lists = std::map<std::string, UnitOptions>;

Lists random_unit_lists(std::mt19937& random) {
  const std::vector<std::string> units{"block0", "block1", "block2", "root"};
  const auto some = [&]() -> std::optional<std::vector<std::string>> {
    if (random() % 4 == 0) return std::nullopt;
    std::vector<std::string> list;
    for (auto n = random() % 4; n > 0; --n) list.push_back(units[random() % units.size()]);
    return list;
  };
  Lists lists;
  for (const std::string& unit : units)
    lists[unit] = {.forward_prefetch = some(), .backward_prefetch = some()};
  return lists;
}

ShardOptions with_lists(Lists lists) {
  ShardOptions options = sharded_by(by_type<BlockImpl>());
  options.unit = [lists = std::move(lists)](const std::string& unit) {
    const auto found = lists.find(unit);
    return found != lists.end() ? found->second : UnitOptions{};
  };
  return options;
}

// W = 2 and 3 also with shards that are gathered into slots.
TEST(Prefetch, AnyListsGiveTheSameBits) {
  std::mt19937 random(seed());
  std::vector<Variant> variants;
  for (int i = repeats(12, 200); i > 0; --i) {
    variants.push_back({"lists " + std::to_string(i), with_lists(random_unit_lists(random))});
    variants.back().options.backward_prefetch = static_cast<BackwardPrefetch>(random() % 3);
    variants.back().options.limit_all_gathers = static_cast<int>(random() % 4);
    if (random() % 4 == 0) variants.back().options.strategy = Strategy::shard_grad_op;
  }
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                model.backward(loss_of(model(now.randn({4, 6}))));
              },
              variants, {.steps = 4, .ranks = {1, 2, 3}});
}

// How often the units of blocks were gathered so far.
int64_t gathers_of(const ShardedModel& model) {
  int64_t count = 0;
  for (const UnitCounts& unit : model.unit_counts())
    if (unit.name.find("block") != std::string::npos) count += unit.gathers;
  return count;
}

// How often each unit was gathered when the first block has just been used in forward, in a planned step.
std::map<std::string, int64_t> gathers_at_first_block(World& world, ShardOptions options) {
  options.share_shards = false;
  auto model = fully_shard(world, make_net(), options);
  std::map<std::string, int64_t> before, at;
  const auto count = [&](std::map<std::string, int64_t>& counts) {
    for (const UnitCounts& unit : model.unit_counts()) counts[unit.name] = unit.gathers;
  };
  for (int step = 0; step < 3; ++step) {
    before.clear();
    count(before);
    model
        .run([&](NetImpl& net) {
          torch::Tensor h = net.blocks[0](net.in(torch::ones({2, 6})));
          count(at);
          return net.out(net.blocks[2](net.blocks[1](h)));
        })
        .sum()
        .backward();
  }
  for (auto& [name, n] : at) n -= before[name];
  return at;
}

TEST(Prefetch, AListIsGatheredWhenItsUnitIsUsed) {
  run_ranks(2, [](World& world) {
    const auto usual = gathers_at_first_block(world, with_lists({}));
    require(usual.at("block1") == 1 && usual.at("block2") == 0, "one ahead");
    const auto listed =
        gathers_at_first_block(world, with_lists({{"block0", {.forward_prefetch = {{"block2", "block1"}}}}}));
    require(listed.at("block1") == 1 && listed.at("block2") == 1, "both, beyond limit_all_gathers");
    const auto none = gathers_at_first_block(
        world, with_lists({{"block0", {.forward_prefetch = std::vector<std::string>{}}}}));
    require(none.at("block1") == 0 && none.at("block2") == 0, "an empty list: none");
  });
}

// How often each unit was gathered in backward, when the last block has just been through.
std::map<std::string, int64_t> gathers_after_last_block(World& world, ShardOptions options) {
  options.share_shards = false;
  options.forward_prefetch = 0;
  auto model = fully_shard(world, make_net(), options);
  std::map<std::string, int64_t> before, at;
  const auto count = [&](std::map<std::string, int64_t>& counts) {
    for (const UnitCounts& unit : model.unit_counts()) counts[unit.name] = unit.gathers;
  };
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor y = model.run([&](NetImpl& net) {
      const torch::Tensor h = net.blocks[1](net.blocks[0](net.in(torch::ones({2, 6}))));
      h.register_hook([&](const torch::Tensor&) { count(at); });
      return net.out(net.blocks[2](h));
    });
    count(before);
    y.sum().backward();
  }
  for (auto& [name, n] : at) n -= before[name];
  return at;
}

TEST(Prefetch, AListOfBackwardIsGatheredWhenItsUnitIsUsed) {
  run_ranks(2, [](World& world) {
    const auto usual = gathers_after_last_block(world, with_lists({}));
    require(usual.at("block1") == 1 && usual.at("block0") == 0, "one ahead");
    const auto listed = gathers_after_last_block(
        world, with_lists({{"block2", {.backward_prefetch = {{"block0", "block1"}}}}}));
    require(listed.at("block1") == 1 && listed.at("block0") == 1, "both");
    const auto none = gathers_after_last_block(
        world, with_lists({{"block2", {.backward_prefetch = std::vector<std::string>{}}}}));
    require(none.at("block1") == 0 && none.at("block0") == 0, "an empty list: none");
  });
}

TEST(Prefetch, AListOfUnknownUnitsIsRefusedBeforeAnythingIsChanged) {
  run_ranks(2, [](World& world) {
    const auto net = make_net();
    const std::string words = refusal([&] {
      fully_shard(world, net, with_lists({{"block1", {.backward_prefetch = {{"block0", "blok2"}}}}}));
    });
    require_words(words, "backward_prefetch of unit 'block1' has 'blok2'");
    require_words(words, "the nearest are 'block");
    net->forward(torch::ones({2, 6})).sum().backward();  // left as it was
  });
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
