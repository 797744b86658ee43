#include "layout/unit_spec.h"

#include <gtest/gtest.h>

namespace fsdp::detail {
namespace {

constexpr ElementType kFloat{.code = 6, .bytes = 4};
constexpr ElementType kHalf{.code = 15, .bytes = 2};
constexpr ElementType kInt{.code = 4, .bytes = 8, .floating = false};

UnitDecl unit_of(std::vector<ParamDecl> params) { return {.name = "block", .params = std::move(params)}; }
ParamDecl weight(int64_t numel, bool trainable = true) {
  return {.id = 0, .name = "weight", .shape = {numel}, .type = kFloat, .trainable = trainable};
}

// 1000 elements over 4 ranks: shards of 256, which is a multiple of 256 bytes in fp32.
TEST(UnitSpec, BytesOfAUnitOverRanks) {
  const UnitSpec spec = make_unit_spec(unit_of({weight(1000)}), {.ranks = 4});
  EXPECT_EQ(spec.shard_bytes(), 256 * 4);
  EXPECT_EQ(spec.slot_bytes(), 4 * 256 * 4);
  EXPECT_EQ(spec.buffer_bytes(), 4 * 256 * 4);
  EXPECT_EQ(spec.gradient_bytes(), 256 * 4);
}

TEST(UnitSpec, PrecisionIsOfFloatingRegionsAlone) {
  ParamDecl counts = weight(10, /*trainable=*/false);
  counts.id = 1;
  counts.type = kInt;
  const UnitSpec spec =
      make_unit_spec(unit_of({weight(1024), counts}), {.ranks = 2, .compute = kHalf, .reduce = kHalf});
  ASSERT_EQ(spec.regions.size(), 2U);
  const RegionSpec& floats = spec.regions[0];
  EXPECT_EQ(floats.shard_bytes(), 512 * 4);
  EXPECT_EQ(floats.slot_bytes(), 1024 * 2);
  EXPECT_EQ(floats.buffer_bytes(), 1024 * 2);
  EXPECT_EQ(floats.gradient_bytes(), 512 * 4);
  const RegionSpec& integers = spec.regions[1];
  EXPECT_EQ(integers.compute, kInt);
  EXPECT_EQ(integers.buffer_bytes(), 0) << "frozen";
  EXPECT_EQ(integers.gradient_bytes(), 0);
}

TEST(UnitSpec, GradientsMayStayInTheTypeTheyAreReducedIn) {
  const UnitChoice choice{.ranks = 2, .reduce = kHalf, .keep_low_precision_grads = true};
  EXPECT_EQ(make_unit_spec(unit_of({weight(1024)}), choice).gradient_bytes(), 512 * 2);
}

TEST(UnitSpec, OneRankNeedsASlotOnlyForAnotherType) {
  EXPECT_EQ(make_unit_spec(unit_of({weight(512)}), {}).slot_bytes(), 0);
  EXPECT_TRUE(make_unit_spec(unit_of({weight(512)}), {}).regions[0].in_place());
  EXPECT_EQ(make_unit_spec(unit_of({weight(512)}), {.compute = kHalf}).slot_bytes(), 512 * 2);
}

TEST(UnitSpec, SharedShardsNeedNoSlot) {
  UnitChoice choice{.ranks = 2, .may_share = true};
  EXPECT_EQ(make_unit_spec(unit_of({weight(512)}), choice).slot_bytes(), 0);
  choice.compute = kHalf;  // what is gathered is another thing than the shards
  EXPECT_EQ(make_unit_spec(unit_of({weight(512)}), choice).slot_bytes(), 512 * 2);
  choice.compute.reset();
  choice.reshard_group = 2;  // keeps a copy of its own
  EXPECT_EQ(make_unit_spec(unit_of({weight(512)}), choice).slot_bytes(), 512 * 4);
}

// The same elements in the same order, whoever holds them.
TEST(UnitSpec, PiecesAreTheSameForAnyNumberOfRanks) {
  const UnitDecl unit = unit_of({weight(1000)});
  const int64_t total = make_unit_spec(unit, {.ranks = 1, .pieces = 8}).regions[0].total();
  for (const int ranks : {2, 4, 8}) {
    const UnitSpec spec = make_unit_spec(unit, {.ranks = ranks, .pieces = 8});
    EXPECT_EQ(spec.layout.ranks, ranks);
    EXPECT_EQ(spec.regions[0].total(), total) << ranks;
  }
}

}  // namespace
}  // namespace fsdp::detail
