#include "layout/rows.h"

#include <gmock/gmock.h>

namespace fsdp::testing {
namespace {

using detail::HostOfRank;
using detail::make_rows;
using detail::Rows;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Grid = std::vector<std::vector<int>>;

// One letter per rank: its host.
Rows rows_on(const std::string& hosts, int shard_size) {
  std::vector<HostOfRank> list;
  for (const char c : hosts) list.push_back({std::string("boot-") + c, std::string("node-") + c});
  return make_rows(list, shard_size);
}

TEST(Rows, AHostIsARowWhateverTheOrderOfRanks) {
  const Rows block = rows_on("aaabbb", 0);
  EXPECT_EQ(block.ranks, (Grid{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_TRUE(block.consecutive);
  const Rows cyclic = rows_on("ababab", 0);
  EXPECT_EQ(cyclic.ranks, (Grid{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_THAT(cyclic.row, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(cyclic.place, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_FALSE(cyclic.consecutive);
  EXPECT_FALSE(cyclic.crosses);
  EXPECT_EQ(rows_on("baab", 0).ranks, (Grid{{0, 3}, {1, 2}})) << "hosts in the order of their first ranks";
}

TEST(Rows, SeveralRowsOfAHost) {
  EXPECT_EQ(rows_on("abababab", 2).ranks, (Grid{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_FALSE(rows_on("abababab", 2).crosses);
  EXPECT_EQ(rows_on("aaaa", 2).ranks, (Grid{{0, 1}, {2, 3}}));
  EXPECT_TRUE(rows_on("aaaa", 2).consecutive);
  EXPECT_EQ(rows_on("aaaaab", 2).ranks, (Grid{{0, 1}, {2, 3}, {4, 5}})) << "unequal hosts, asked for";
}

TEST(Rows, CrossingHostsIsToldWhereItCouldBeAvoided) {
  EXPECT_TRUE(rows_on("aaaaab", 2).crosses);
  EXPECT_TRUE(rows_on("aaabbb", 2).crosses);
  EXPECT_FALSE(rows_on("aabb", 4).crosses) << "no host has four ranks";
  EXPECT_FALSE(rows_on("aaaa", 4).crosses);
}

TEST(Rows, EveryRankHasOnePlace) {
  for (const char* hosts : {"aaaabbbb", "abababab", "abbaabba", "abcdabcd", "aaaaaaaa", "aabbccdd"}) {
    for (const int size : {0, 1, 2, 4, 8}) {
      const Rows rows = rows_on(hosts, size);
      ASSERT_EQ(rows.refusal, "");
      for (size_t rank = 0; rank < 8; ++rank)
        EXPECT_EQ(rows.ranks[static_cast<size_t>(rows.row[rank])][static_cast<size_t>(rows.place[rank])],
                  static_cast<int>(rank));
      EXPECT_EQ(rows.row[0], 0);
      EXPECT_EQ(rows.place[0], 0) << "rank 0 is first: it gathers what only rank 0 wants";
    }
  }
}

TEST(Rows, WhatCannotBeRowsIsRefusedInWords) {
  EXPECT_THAT(rows_on("aaab", 0).refusal,
              ::testing::AllOf(HasSubstr("3 on node-a, 1 on node-b"), HasSubstr("shard_size"),
                               HasSubstr("divisor of 4")));
  EXPECT_THAT(rows_on("aaaa", 3).refusal, HasSubstr("4 ranks cannot be rows of 3 (shard_size)"));
  EXPECT_THAT(rows_on("aaaa", -2).refusal, HasSubstr("cannot be rows of -2"));
}

}  // namespace
}  // namespace fsdp::testing
