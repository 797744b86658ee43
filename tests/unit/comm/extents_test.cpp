#include "comm/shared/extents.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <limits>

#include "unit/comm/control_memory.h"

namespace fsdp::detail {
namespace {

constexpr size_t kBytes = 64 * 1024;

// One allocation, as both ranks of a group see it.
class ExtentsTest : public ::testing::Test {
 protected:
  explicit ExtentsTest(MemoryUse use = MemoryUse::gather)
      : segment_(std::make_shared<HeapSegment>(Allocation::segment_bytes(use, kBytes, 2))) {
    for (int r = 0; r < 2; ++r)
      ranks_.push_back(std::make_shared<Allocation>(segment_, use, kBytes, r, 2, /*number=*/1));
  }

  // Every rank begins a use; as rank 0 sees it.
  Extent& begin_use(size_t offset, size_t bytes) {
    before_.clear();
    std::vector<Completion> theirs;
    ranks_[1]->begin_use(offset, bytes, theirs);
    return ranks_[0]->begin_use(offset, bytes, before_);
  }
  Extent& of_rank(size_t rank, const Extent& extent) {
    return *ranks_[rank]->find(extent.offset, extent.bytes);
  }

  SegmentPtr segment_;
  std::vector<AllocationPtr> ranks_;
  std::vector<Completion> before_;
};

class ReduceExtentsTest : public ExtentsTest {
 protected:
  ReduceExtentsTest() : ExtentsTest(MemoryUse::reduce) {}
};

TEST_F(ExtentsTest, AUseIsOverWhenEveryRankHasFinished) {
  for (int use = 0; use < 3; ++use) {
    Extent& extent = begin_use(0, 256);
    EXPECT_FALSE(extent.completion().reached());
    EXPECT_FALSE(of_rank(1, extent).finish()) << "the other rank still reads";
    EXPECT_FALSE(extent.completion().reached());
    EXPECT_TRUE(extent.finish()) << "the last to finish knows that it is";
    EXPECT_TRUE(extent.completion().reached());
    EXPECT_TRUE(of_rank(1, extent).completion().reached());
  }
}

TEST_F(ExtentsTest, AUseWaitsForTheUsesItOverlaps) {
  Extent& first = begin_use(256, 256);
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

TEST_F(ExtentsTest, ANewUseOfARangeWaitsForItsLast) {
  Extent& extent = begin_use(0, 256);
  begin_use(0, 256);
  ASSERT_EQ(before_.size(), 1u);
  extent.finish();
  EXPECT_FALSE(before_[0].reached());
  of_rank(1, extent).finish();
  EXPECT_TRUE(before_[0].reached());
  EXPECT_FALSE(extent.completion().reached()) << "the new use has not ended";
}

TEST_F(ExtentsTest, CountsMayWrapAround) {
  std::atomic<uint32_t> count{std::numeric_limits<uint32_t>::max()};
  const Completion completion{&count, 1};
  EXPECT_FALSE(completion.reached());
  count += 2;
  EXPECT_TRUE(completion.reached());
}

TEST_F(ExtentsTest, TheRangeUnusedForLongestGivesUpItsCounter) {
  constexpr size_t kCounters = 4096;
  std::atomic<uint32_t>* of_the_first = nullptr;
  for (size_t i = 0; i < kCounters; ++i) {
    Extent& extent = begin_use(i * 8, 8);
    if (i == 0) of_the_first = extent.finished;
    extent.held = of_rank(1, extent).held = false;
  }
  Extent& late = begin_use(kCounters * 8, 8);
  EXPECT_EQ(late.finished, of_the_first);
  ASSERT_EQ(before_.size(), 1u);
  EXPECT_FALSE(before_[0].reached()) << "nobody has counted itself finished with the first range yet";
  EXPECT_EQ(ranks_[0]->find(0, 8), nullptr);
}

TEST_F(ExtentsTest, ARangeThatIsHeldKeepsItsCounter) {
  for (size_t i = 0; i < 4096; ++i) begin_use(i * 8, 8);
  EXPECT_THROW(begin_use(4096 * 8, 8), c10::Error);
}

TEST_F(ExtentsTest, AllRanksGatherIntoOneMemory) { EXPECT_EQ(ranks_[0]->own(), ranks_[1]->own()); }

TEST_F(ReduceExtentsTest, EveryRankReducesFromABlockOfItsOwn) {
  EXPECT_EQ(ranks_[0]->block(1), ranks_[1]->own());
  EXPECT_GE(ranks_[1]->own(), ranks_[0]->own() + kBytes);
  EXPECT_LE(ranks_[1]->own() + kBytes, segment_->data() + segment_->size());
}

TEST_F(ExtentsTest, AnAllocationIsFoundByAnyRangeInsideIt) {
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

TEST_F(ExtentsTest, DroppedMemoryIsHeldNoLonger) {
  AllocationTable table;
  table.add(ranks_[0]);
  Extent& theirs = of_rank(1, begin_use(0, 256));
  theirs.finish();
  EXPECT_FALSE(theirs.completion().reached());
  table.remove(ranks_[0]->own());
  EXPECT_TRUE(theirs.completion().reached());
}

TEST_F(ExtentsTest, ReleasingEverythingCountsEachHeldRangeOnce) {
  Extent& first = begin_use(0, 256);
  Extent& second = begin_use(256, 256);
  first.held = false;
  ranks_[0]->release_all();
  ranks_[0]->release_all();
  EXPECT_EQ(*first.finished, 0u) << "it was not held";
  EXPECT_EQ(*second.finished, 1u);
}

// Whoever reads a block counts itself when it has summed: that is no choice of the block's owner.
TEST_F(ReduceExtentsTest, DroppedInputIsNotCountedAsRead) {
  Extent& extent = begin_use(0, 256);
  ranks_[0]->release_all();
  EXPECT_EQ(*extent.finished, 0u);
}

}  // namespace
}  // namespace fsdp::detail
