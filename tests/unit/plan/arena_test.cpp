#include "plan/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;

constexpr int64_t kKiB = 1024;

bool share_a_run(const Lifetime& a, const Lifetime& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

void expect_valid(const std::vector<Lifetime>& lifetimes, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), lifetimes.size());
  ASSERT_GE(packing.bytes, peak_bytes(lifetimes));
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const int64_t end = packing.offsets[i] + lifetimes[i].bytes;
    if (lifetimes[i].begin >= lifetimes[i].end) continue;
    ASSERT_GE(packing.offsets[i], 0);
    ASSERT_LE(end, packing.bytes);
    ASSERT_EQ(packing.offsets[i] % 256, 0);
    for (size_t j = 0; j < i; ++j) {
      if (lifetimes[j].bytes == 0 || lifetimes[i].bytes == 0 || !share_a_run(lifetimes[i], lifetimes[j]))
        continue;
      ASSERT_TRUE(end <= packing.offsets[j] || packing.offsets[j] + lifetimes[j].bytes <= packing.offsets[i])
          << i << " and " << j;
    }
  }
}

void expect_smallest(const std::vector<Lifetime>& lifetimes) {
  const Packing packing = pack(lifetimes);
  expect_valid(lifetimes, packing);
  EXPECT_EQ(packing.bytes, peak_bytes(lifetimes));
}

// Units used one after the other, each gathered `ahead` runs before.
std::vector<Lifetime> chain(const std::vector<int64_t>& sizes, int32_t ahead) {
  std::vector<Lifetime> lifetimes;
  for (int32_t p = 0; p < static_cast<int32_t>(sizes.size()); ++p)
    lifetimes.push_back({std::max(p - ahead, 0), p + 1, sizes[static_cast<size_t>(p)]});
  return lifetimes;
}

// The sizes of forward and backward: the last unit of forward is the first of backward.
std::vector<int64_t> there_and_back(std::vector<int64_t> sizes) {
  sizes.insert(sizes.end(), sizes.rbegin() + 1, sizes.rend());
  return sizes;
}

TEST(ArenaPeak, IsTheMostBytesAliveInOneRun) {
  EXPECT_EQ(peak_bytes({}), 0);
  EXPECT_EQ(peak_bytes({{0, 2, 512}, {2, 3, 768}}), 768) << "one ends where the other begins";
  EXPECT_EQ(peak_bytes({{0, 3, 512}, {2, 3, 768}, {3, 4, 256}}), 1280);
  EXPECT_EQ(peak_bytes({{4, 4, 512}}), 0) << "never alive";
}

TEST(ArenaPack, NothingTakesNoBytes) {
  EXPECT_EQ(pack({}).bytes, 0);
  const Packing packing = pack({{0, 2, 0}, {0, 2, 0}, {3, 3, 256}});
  EXPECT_EQ(packing.offsets.size(), 3u);
  EXPECT_EQ(packing.bytes, 0);
}

TEST(ArenaPack, LifetimesThatShareNoRunShareMemory) {
  EXPECT_EQ(pack({{0, 1, 512}, {1, 2, 512}, {2, 9, 256}}).offsets, (std::vector<int64_t>{0, 0, 0}));
}

TEST(ArenaPack, UnitsWithoutBytesCostNothing) { expect_smallest(chain({512, 0, 512, 0, 0, 512}, 1)); }

TEST(ArenaPack, EqualBlocksTakeOneSlotPerUnitAlive) {
  for (const int32_t ahead : {0, 1, 2, 3}) {
    const auto lifetimes = chain(std::vector<int64_t>(24, 3 * kKiB), ahead);
    expect_smallest(lifetimes);
    EXPECT_EQ(pack(lifetimes).bytes, (ahead + 1) * 3 * kKiB);
  }
}

TEST(ArenaPack, EmbeddingBlocksAndHeadReachTheBound) {
  for (const int64_t embedding : {1, 7, 40})
    for (const int64_t head : {2, 5, 40})
      for (const int32_t ahead : {0, 1, 2}) {
        std::vector<int64_t> sizes(13, 4 * kKiB);
        sizes.front() = embedding * kKiB;
        sizes.back() = head * kKiB;
        expect_smallest(chain(there_and_back(sizes), ahead));
      }
}

TEST(ArenaPack, ATiedUnitUsedFirstAndLastReachesTheBound) {
  for (const int64_t root : {1, 7, 40})
    for (const size_t blocks : {4, 5, 12})
      for (const int32_t ahead : {0, 1, 2}) {
        std::vector<int64_t> sizes(blocks + 2, 4 * kKiB);
        sizes.front() = sizes.back() = root * kKiB;
        expect_smallest(chain(there_and_back(sizes), ahead));
      }
}

// Forward and backward, where units that are `first` plus a multiple of `every` stay in between.
std::vector<Lifetime> with_kept(const std::vector<int64_t>& sizes, int32_t ahead, int32_t every,
                                int32_t first) {
  const auto last = static_cast<int32_t>(2 * sizes.size() - 2);
  std::vector<Lifetime> lifetimes;
  for (const Lifetime& life : chain(there_and_back(sizes), ahead)) {
    const int32_t use = life.end - 1;
    const int32_t unit = std::min(use, last - use);
    if (unit % every != first || 2 * use == last) {
      lifetimes.push_back(life);
    } else if (use == unit) {
      lifetimes.push_back({life.begin, last - unit + 1, life.bytes});
    }
  }
  return lifetimes;
}

TEST(ArenaPack, KeptUnitsReachTheBound) {
  for (const size_t units : {6, 12})
    for (const int64_t embedding : {7, 9})
      for (const int32_t ahead : {1, 2})
        for (const int32_t every : {1, 2, 3})
          for (int32_t first = 0; first < every; ++first) {
            std::vector<int64_t> sizes(units, 4 * kKiB);
            sizes.front() = embedding * kKiB;
            sizes.back() = 2 * kKiB;
            expect_smallest(with_kept(sizes, ahead, every, first));
          }
}

TEST(ArenaPack, TwoThousandLifetimes) {
  std::mt19937 random(seed());
  std::vector<int64_t> sizes;
  while (sizes.size() < 2000) sizes.push_back(256 * static_cast<int64_t>(1 + random() % 100));
  expect_smallest(chain(sizes, 1));
  const auto lifetimes = chain(sizes, 300);
  expect_valid(lifetimes, pack(lifetimes));
}

std::vector<Lifetime> random_lifetimes(std::mt19937& random) {
  std::vector<Lifetime> lifetimes(random() % 40);
  const size_t longest = 1 + random() % 20;
  for (Lifetime& life : lifetimes) {
    life.begin = static_cast<int32_t>(random() % 40);
    life.end = life.begin + static_cast<int32_t>(random() % (longest + 1));
    life.bytes = 256 * static_cast<int64_t>(random() % 12);
  }
  return lifetimes;
}

TEST(ArenaPackProperty, NoTwoThatAreAliveTogetherOverlap) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 20000); round > 0; --round) {
    const auto lifetimes = random_lifetimes(random);
    const Packing packing = pack(lifetimes);
    expect_valid(lifetimes, packing);
    EXPECT_EQ(pack(lifetimes).offsets, packing.offsets) << "the same again";
    if (HasFailure()) return;
  }
}

TEST(ArenaPackProperty, WhereTwoAreAliveOrAllAreKeptTheBoundIsReached) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 20000); round > 0 && !HasFailure(); --round) {
    std::vector<int64_t> sizes(2 + random() % 30);
    for (int64_t& size : sizes) size = 256 * static_cast<int64_t>(random() % 100);
    expect_smallest(chain(sizes, 1));
    std::vector<Lifetime> kept = chain(sizes, static_cast<int32_t>(random() % 3));
    for (Lifetime& life : kept) life.end = 100 - life.end;
    expect_smallest(kept);
  }
}

TEST(ArenaHole, IsTheFirstThatFits) {
  EXPECT_EQ(find_hole({}, 512, 512), 0);
  EXPECT_EQ(find_hole({}, 513, 512), std::nullopt);
  EXPECT_EQ(find_hole({{1024, 256}, {0, 256}}, 512, 2048), 256) << "in any order";
  EXPECT_EQ(find_hole({{1024, 256}, {0, 256}}, 769, 2049), 1280);
  EXPECT_EQ(find_hole({{0, 1024}, {256, 256}}, 256, 1280), 1024) << "one inside the other";
  EXPECT_EQ(find_hole({{256, 0}}, 512, 512), 0) << "nothing is taken there";
  EXPECT_EQ(find_hole({{0, 512}}, 0, 512), 0) << "no bytes fit anywhere";
  EXPECT_EQ(find_hole({{0, 512}}, 256, 512), std::nullopt);
}

TEST(ArenaHoleProperty, AgreesWithTryingEveryOffset) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 20000); round > 0; --round) {
    const auto arena = static_cast<int64_t>(random() % 40);
    std::vector<Range> taken(random() % 6);
    std::vector<bool> used(64);
    for (Range& range : taken) {
      range = {static_cast<int64_t>(random() % 45), static_cast<int64_t>(random() % 9)};
      for (int64_t i = range.offset; i < range.end(); ++i) used[static_cast<size_t>(i)] = true;
    }
    const auto bytes = static_cast<int64_t>(1 + random() % 12);
    std::optional<int64_t> expected;
    for (int64_t offset = arena - bytes; offset >= 0; --offset) {
      const auto from = used.begin() + offset;
      if (std::find(from, from + bytes, true) == from + bytes) expected = offset;
    }
    ASSERT_EQ(find_hole(taken, bytes, arena), expected);
  }
}

}  // namespace
}  // namespace fsdp::testing
