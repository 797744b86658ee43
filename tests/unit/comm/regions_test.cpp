#include "comm/shared/regions.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <limits>

#include "unit/comm/control_memory.h"

namespace fsdp::detail {
namespace {

constexpr size_t kBytes = 64 * 1024;

// One allocation, as both ranks of a group see it.
class RegionsTest : public ::testing::Test {
 protected:
  explicit RegionsTest(MemoryUse use = MemoryUse::gather)
      : segment_(std::make_shared<HeapSegment>(Allocation::segment_bytes(use, kBytes, 2))) {
    for (int r = 0; r < 2; ++r)
      ranks_.push_back(std::make_shared<Allocation>(segment_, use, kBytes, r, 2, /*number=*/1));
  }

  // Every rank begins a use; as rank 0 sees it.
  Region& begin_use(size_t offset, size_t bytes) {
    before_.clear();
    std::vector<Completion> theirs;
    ranks_[1]->begin_use(offset, bytes, theirs);
    return ranks_[0]->begin_use(offset, bytes, before_);
  }
  Region& of_rank(size_t rank, const Region& region) {
    return *ranks_[rank]->find(region.offset, region.bytes);
  }

  SegmentPtr segment_;
  std::vector<AllocationPtr> ranks_;
  std::vector<Completion> before_;
};

class ReduceRegionsTest : public RegionsTest {
 protected:
  ReduceRegionsTest() : RegionsTest(MemoryUse::reduce) {}
};

TEST_F(RegionsTest, AUseIsOverWhenEveryRankHasFinished) {
  for (int use = 0; use < 3; ++use) {
    Region& region = begin_use(0, 256);
    EXPECT_FALSE(region.completion().reached());
    EXPECT_FALSE(of_rank(1, region).finish()) << "the other rank still reads";
    EXPECT_FALSE(region.completion().reached());
    EXPECT_TRUE(region.finish()) << "the last to finish knows that it is";
    EXPECT_TRUE(region.completion().reached());
    EXPECT_TRUE(of_rank(1, region).completion().reached());
  }
}

TEST_F(RegionsTest, AUseWaitsForTheUsesItOverlaps) {
  Region& first = begin_use(256, 256);
  for (const size_t neighbour : {0, 512}) {
    begin_use(neighbour, 256);
    EXPECT_TRUE(before_.empty()) << "neighbours do not overlap";
  }
  begin_use(384, 256);
  ASSERT_EQ(before_.size(), 2u);
  EXPECT_FALSE(before_[0].reached());
  first.finish();
  of_rank(1, first).finish();
  EXPECT_TRUE(before_[0].reached());
  EXPECT_FALSE(before_[1].reached());
}

TEST_F(RegionsTest, ANewUseOfARangeWaitsForItsLast) {
  Region& region = begin_use(0, 256);
  begin_use(0, 256);
  ASSERT_EQ(before_.size(), 1u);
  region.finish();
  EXPECT_FALSE(before_[0].reached());
  of_rank(1, region).finish();
  EXPECT_TRUE(before_[0].reached());
  EXPECT_FALSE(region.completion().reached()) << "the new use has not ended";
}

TEST_F(RegionsTest, CountsMayWrapAround) {
  std::atomic<uint32_t> count{std::numeric_limits<uint32_t>::max()};
  const Completion completion{&count, 1};
  EXPECT_FALSE(completion.reached());
  count += 2;
  EXPECT_TRUE(completion.reached());
}

TEST_F(RegionsTest, TheRangeUnusedForLongestGivesUpItsCounter) {
  constexpr size_t kCounters = 4096;
  std::atomic<uint32_t>* of_the_first = nullptr;
  for (size_t i = 0; i < kCounters; ++i) {
    Region& region = begin_use(i * 8, 8);
    if (i == 0) of_the_first = region.finished;
    region.held = of_rank(1, region).held = false;
  }
  Region& late = begin_use(kCounters * 8, 8);
  EXPECT_EQ(late.finished, of_the_first);
  ASSERT_EQ(before_.size(), 1u);
  EXPECT_FALSE(before_[0].reached()) << "nobody has counted itself finished with the first range yet";
  EXPECT_EQ(ranks_[0]->find(0, 8), nullptr);
}

TEST_F(RegionsTest, ARangeThatIsHeldKeepsItsCounter) {
  for (size_t i = 0; i < 4096; ++i) begin_use(i * 8, 8);
  EXPECT_THROW(begin_use(4096 * 8, 8), c10::Error);
}

TEST_F(RegionsTest, AllRanksGatherIntoOneMemory) { EXPECT_EQ(ranks_[0]->own(), ranks_[1]->own()); }

TEST_F(ReduceRegionsTest, EveryRankReducesFromABlockOfItsOwn) {
  EXPECT_EQ(ranks_[0]->block(1), ranks_[1]->own());
  EXPECT_GE(ranks_[1]->own(), ranks_[0]->own() + kBytes);
  EXPECT_LE(ranks_[1]->own() + kBytes, segment_->data() + segment_->size());
}

TEST_F(RegionsTest, AnAllocationIsFoundByAnyRangeInsideIt) {
  AllocationTable table;
  const char* own = ranks_[0]->own();
  EXPECT_EQ(table.find(own, 8), nullptr);
  table.add(ranks_[0]);
  EXPECT_EQ(table.find(own, kBytes), ranks_[0]);
  EXPECT_EQ(table.find(own + kBytes - 8, 8), ranks_[0]);
  EXPECT_EQ(table.find(own + kBytes - 8, 9), nullptr) << "it ends before";
  EXPECT_EQ(table.find(own - 8, 16), nullptr) << "it begins after";
  table.remove(own);
  EXPECT_EQ(table.find(own, 8), nullptr);
}

TEST_F(RegionsTest, DroppedMemoryIsHeldNoLonger) {
  AllocationTable table;
  table.add(ranks_[0]);
  Region& theirs = of_rank(1, begin_use(0, 256));
  theirs.finish();
  EXPECT_FALSE(theirs.completion().reached());
  table.remove(ranks_[0]->own());
  EXPECT_TRUE(theirs.completion().reached());
}

TEST_F(RegionsTest, ReleasingEverythingCountsEachHeldRangeOnce) {
  Region& first = begin_use(0, 256);
  Region& second = begin_use(256, 256);
  first.held = false;
  ranks_[0]->release_all();
  ranks_[0]->release_all();
  EXPECT_EQ(*first.finished, 0u) << "it was not held";
  EXPECT_EQ(*second.finished, 1u);
}

// Whoever reads a block counts itself when it has summed: that is no choice of the block's owner.
TEST_F(ReduceRegionsTest, DroppedInputIsNotCountedAsRead) {
  Region& region = begin_use(0, 256);
  ranks_[0]->release_all();
  EXPECT_EQ(*region.finished, 0u);
}

}  // namespace
}  // namespace fsdp::detail
