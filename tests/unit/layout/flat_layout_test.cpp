#include "layout/flat_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/ranks.h"
#include "unit/layout/random_tree.h"

namespace fsdp::testing {
namespace {

using namespace detail;

constexpr ElementType kF32{6, 4};
constexpr ElementType kBf16{15, 2};

UnitDecl unit_of(std::vector<std::vector<int64_t>> shapes, ElementType type = kF32) {
  UnitDecl unit{.name = "u", .params = {}};
  for (auto& shape : shapes) {
    const auto id = static_cast<ParamId>(unit.params.size());
    unit.params.push_back({.id = id,
                           .name = "p" + std::to_string(id),
                           .shape = std::move(shape),
                           .type = type,
                           .trainable = true});
  }
  return unit;
}

TEST(FlatLayout, TenElementsOnThreeRanksAreShardsOfFour) {
  const UnitLayout layout = make_layout(unit_of({{10}}), 3, 0, /*align_bytes=*/1);
  ASSERT_EQ(layout.regions.size(), 1u);
  EXPECT_EQ(layout.regions[0].shard_numel, 4);
  EXPECT_EQ(layout.regions[0].total(3), 12);
  const auto ranges = layout.ranges(layout.params[0]);
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[2].start, 8);
  EXPECT_EQ(ranges[2].size, 2);
}

TEST(FlatLayout, EveryParameterAndShardIsAlignedInTheNarrowestType) {
  const UnitLayout layout = make_layout(unit_of({{3}, {100, 7}, {1}}), 4, /*narrowest_bytes=*/2);
  for (const Placement& param : layout.params)
    EXPECT_EQ(param.offset * 2 % kAlignBytes, 0) << param.param.name;
  EXPECT_EQ(layout.regions[0].shard_numel * 2 % kAlignBytes, 0);
}

TEST(FlatLayout, TypesAndFrozenPartsHaveRegionsOfTheirOwn) {
  UnitDecl unit = unit_of({{8}, {8}, {8}, {8}});
  unit.params[1].type = kBf16;
  unit.params[2].trainable = false;
  const UnitLayout layout = make_layout(unit, 2);
  ASSERT_EQ(layout.regions.size(), 3u);
  EXPECT_EQ(layout.params[0].region, layout.params[3].region);
  EXPECT_NE(layout.params[0].region, layout.params[1].region);
  EXPECT_NE(layout.params[0].region, layout.params[2].region);
  EXPECT_FALSE(layout.regions[static_cast<size_t>(layout.params[2].region)].trainable);
}

TEST(FlatLayout, ParametersWithoutElementsAreKeptAndOwnedByNobody) {
  const UnitLayout layout = make_layout(unit_of({{0, 5}, {}, {4}}), 3);
  EXPECT_EQ(layout.params[0].numel, 0);
  EXPECT_TRUE(layout.ranges(layout.params[0]).empty());
  EXPECT_EQ(layout.params[1].numel, 1) << "a scalar has one element";
  const UnitLayout empty = make_layout(unit_of({{0}}), 3);
  EXPECT_EQ(empty.regions[0].shard_numel, 0);
}

// Counts, for every element of every region, how many (parameter, rank) pairs own it.
void check_ownership(const UnitLayout& layout) {
  std::vector<std::vector<int>> owners(layout.regions.size());
  for (size_t i = 0; i < owners.size(); ++i)
    owners[i].resize(static_cast<size_t>(layout.regions[i].total(layout.ranks)));
  for (const Placement& param : layout.params) {
    const int64_t shard = layout.regions[static_cast<size_t>(param.region)].shard_numel;
    int64_t covered = 0;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const ShardRange range = layout.range(param, rank);
      ASSERT_LE(range.in_shard + range.size, shard);
      if (range.size > 0) {
        ASSERT_EQ(range.start, covered) << "ranges follow each other";
      }
      covered += range.size;
      for (int64_t k = 0; k < range.size; ++k) {
        ASSERT_EQ(rank * shard + range.in_shard + k, param.offset + range.start + k)
            << "both ways of counting agree";
        ++owners[static_cast<size_t>(param.region)][static_cast<size_t>(param.offset + range.start + k)];
      }
    }
    ASSERT_EQ(covered, param.numel);
    int64_t listed = 0;
    for (const ShardRange& range : layout.ranges(param)) listed += range.size;
    ASSERT_EQ(listed, param.numel);
  }
  for (size_t i = 0; i < owners.size(); ++i)
    for (const int count : owners[i]) ASSERT_LE(count, 1);
}

// From the tree to the shards, as a program goes.
TEST(FlatLayoutProperty, EveryElementIsOwnedExactlyOnce) {
  std::mt19937 random(seed());
  for (int round = repeats(60, 2000); round > 0; --round) {
    RandomTree tree(random);
    const ModuleDecl root = tree.grow(4);
    const auto ignored = params_under(root, random_paths(random, root));
    const auto below = static_cast<int64_t>(random() % 30);
    const int ranks = 1 + static_cast<int>(random() % 64);
    for (const UnitPolicy& policy : all_policies(random, root)) {
      std::map<ParamId, int64_t> owned;  // elements, over all units and ranks
      for (const ParamId id : ignored) owned[id] = 0;
      auto units = make_units(root, policy, ignored);
      for (const ParamDecl& param : take_small(units, below)) owned[param.id] = 0;
      std::map<ParamId, int64_t> expected = owned;
      for (const ParamDecl& param : tree.params()) expected.try_emplace(param.id, param.numel());
      for (const UnitDecl& unit : resize_units(units, random_sizes(random))) {
        const UnitLayout layout =
            make_layout(unit, ranks, random() % 2 ? 2 : 0, random() % 4 ? kAlignBytes : 1);
        check_ownership(layout);
        if (HasFatalFailure()) return;
        for (const Placement& param : layout.params)
          for (int rank = 0; rank < ranks; ++rank) owned[param.param.id] += layout.range(param, rank).size;
      }
      ASSERT_EQ(owned, expected);
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
