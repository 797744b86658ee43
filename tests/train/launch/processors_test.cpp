// Which processors ranks are bound to.
#include "app/launch/processors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fsdp::launch {
namespace {

using Processors = std::vector<int>;

const ProcessorsByNode kTwo = {{0, 1, 2, 3, 8, 9}, {4, 5, 6, 7}};

TEST(Processors, NeighbouringRanksShareANode) {
  for (const NumaBinding binding : {NumaBinding::automatic, NumaBinding::node}) {
    EXPECT_EQ(processors_of_rank(kTwo, binding, false, 0, 4), kTwo[0]);
    EXPECT_EQ(processors_of_rank(kTwo, binding, false, 1, 4), kTwo[0]);
    EXPECT_EQ(processors_of_rank(kTwo, binding, false, 2, 4), kTwo[1]);
    EXPECT_EQ(processors_of_rank(kTwo, binding, false, 3, 4), kTwo[1]);
  }
}

TEST(Processors, ExclusiveSharesDoNotOverlapAndUseAll) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    Processors all;
    for (int rank = 0; rank < ranks; ++rank)
      for (const int one : processors_of_rank(kTwo, NumaBinding::exclusive, false, rank, ranks))
        all.push_back(one);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, Processors({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})) << ranks;
  }
}

TEST(Processors, RanksAreNotBoundWhereThatWouldHurt) {
  EXPECT_EQ(processors_of_rank(kTwo, NumaBinding::none, false, 0, 4), Processors());
  EXPECT_EQ(processors_of_rank(kTwo, NumaBinding::automatic, true, 0, 4), Processors()) << "GPUs decide";
  EXPECT_EQ(processors_of_rank({{0, 1}}, NumaBinding::automatic, false, 0, 2), Processors()) << "one node";
  EXPECT_EQ(processors_of_rank(kTwo, NumaBinding::node, false, 0, 1), Processors()) << "a rank may use both";
  EXPECT_EQ(processors_of_rank({{0, 1}}, NumaBinding::exclusive, false, 0, 3), Processors()) << "too few";
}

TEST(Processors, AreReadFromTheSystem) {
  const ProcessorsByNode here = usable_processors_by_node();
  ASSERT_FALSE(here.empty());
  const int first = here[0][0];
  const auto sys = std::filesystem::path(::testing::TempDir()) / "sys_of_processors_test";
  const auto nodes = sys / "devices/system/node";
  std::filesystem::create_directories(nodes / "node0");
  std::filesystem::create_directories(nodes / "node1");
  std::filesystem::create_directories(nodes / "power");
  std::ofstream(nodes / "node0/cpulist") << "5000-5003,5010\n";
  std::ofstream(nodes / "node1/cpulist") << first << "-" << first << "\n";
  EXPECT_EQ(usable_processors_by_node(sys), ProcessorsByNode({{first}}))
      << "processors of others are left out";
  std::filesystem::remove_all(sys);
  EXPECT_EQ(usable_processors_by_node(sys).size(), 1U) << "a system that does not tell";
}

}  // namespace
}  // namespace fsdp::launch
