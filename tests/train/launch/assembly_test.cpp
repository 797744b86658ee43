// When nodes start their ranks, and what follows when some end: Note [Rounds].
#include "app/launch/nodes/assembly.h"

#include <gmock/gmock.h>

namespace fsdp::launch {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Order::Kind;

class Rounds : public testing::Test {
 protected:
  void begin(int least, int most, int max_restarts = 5) {
    assembly_.emplace(AssemblyRules{.least = least, .most = most, .max_restarts = max_restarts}, now_);
  }
  Assembly::Orders join(int node, int place = -1, int ranks = 2) {
    return assembly_->joined(node, {.host = "host" + std::to_string(node), .ranks = ranks, .place = place},
                             now_);
  }
  Assembly::Orders ends(int node, int exit_code, int64_t step = -1, int signal = 0) {
    Outcome outcome;
    outcome.interrupted_by = signal;
    outcome.ends = {{.rank = 2 * node, .exit_code = exit_code, .step = step}};
    return assembly_->ended(node, outcome, now_);
  }
  Assembly::Orders after(seconds time) { return assembly_->tick(now_ += time); }
  // "0 start 2", ...: node, what it has to do, and of how many nodes.
  static std::vector<std::string> text(const Assembly::Orders& orders) {
    const char* names[] = {"start", "wait", "fail", "leave", "over", "refuse"};
    std::vector<std::string> lines;
    for (const Order& order : orders)
      lines.push_back(std::to_string(order.node) + " " + names[static_cast<int>(order.kind)] +
                      (order.kind == Kind::start ? " " + std::to_string(order.nodes) : ""));
    return lines;
  }

  Assembly::Now now_{};
  std::optional<Assembly> assembly_;
};

TEST_F(Rounds, AFixedRunWaitsForAllNodesHoweverLong) {
  begin(3, 3);
  EXPECT_THAT(join(0), IsEmpty());
  EXPECT_THAT(join(1), IsEmpty());
  EXPECT_THAT(after(seconds(500)), IsEmpty());
  EXPECT_THAT(text(join(2)), ElementsAre("0 start 3", "1 start 3", "2 start 3"));
}

TEST_F(Rounds, NodesGetThePlacesThatTheyAskFor) {
  begin(2, 2);
  join(0, 1);
  const auto orders = join(1, 0);
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[0].place, 1);
  EXPECT_EQ(orders[1].place, 0);
}

TEST_F(Rounds, ANodeThatDoesNotFitIsRefusedAndTheOthersGoOn) {
  begin(2, 2);
  join(0, 0);
  EXPECT_THAT(join(1, 0)[0].text, HasSubstr("--node-rank 0: host0 is this node already"));
  EXPECT_THAT(join(2, 2)[0].text, HasSubstr("--node-rank 2: the run has 2 nodes"));
  EXPECT_THAT(join(3, 1, 4)[0].text, HasSubstr("found 4 on host3 and 2 on host0"));
  EXPECT_THAT(text(join(4, 1)), ElementsAre("0 start 2", "4 start 2"));
}

TEST_F(Rounds, TheRunIsOverWhenAllNodesEndedWell) {
  begin(2, 2);
  join(0), join(1);
  EXPECT_THAT(ends(0, 0), IsEmpty());
  EXPECT_THAT(text(ends(1, 0)), ElementsAre("0 over", "1 over"));
  EXPECT_EQ(assembly_->outcome().exit_code(), 0);
}

TEST_F(Rounds, AFailureEndsTheOthersAndStartsAllAgain) {
  begin(2, 2);
  join(0), join(1);
  EXPECT_THAT(text(assembly_->failing(1)), ElementsAre("0 fail"));
  EXPECT_THAT(ends(0, 5), IsEmpty());
  const auto orders = ends(1, 3);
  EXPECT_THAT(text(orders), ElementsAre("0 start 2", "1 start 2"));
  EXPECT_EQ(orders[0].restarts, 1);
  EXPECT_THAT(orders[0].text,
              HasSubstr("rank 2 of 4 on host1 ended with exit code 3; starting all ranks again"));
}

TEST_F(Rounds, TheNodeThatFailedFirstIsTheCauseAlsoIfItEndsLast) {
  begin(2, 2, 0);
  join(0), join(1);
  assembly_->failing(1);
  ends(0, 1);
  EXPECT_THAT(text(ends(1, 3)), ElementsAre("0 over", "1 over"));
  EXPECT_THAT(report(assembly_->outcome()),
              testing::StartsWith("rank 2 of 4 on host1 ended with exit code 3"));
}

TEST_F(Rounds, RestartsEnd) {
  begin(1, 2, 2);
  join(0), join(1);
  for (int i = 0; i < 2; ++i) {
    ends(0, 1);
    EXPECT_THAT(text(ends(1, 1)), ElementsAre("0 start 2", "1 start 2"));
  }
  ends(0, 7);
  EXPECT_THAT(text(ends(1, 7)), ElementsAre("0 over", "1 over"));
  EXPECT_EQ(assembly_->outcome().exit_code(), 7);
}

TEST_F(Rounds, TheThirdFailureInOneStepEndsTheRun) {
  begin(1, 1, 9);
  join(0);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(text(ends(0, 1, 40)), ElementsAre("0 start 1"));
  EXPECT_THAT(text(ends(0, 1, 40)), ElementsAre("0 over"));
  EXPECT_THAT(assembly_->outcome().not_again, HasSubstr("step 40"));
}

TEST_F(Rounds, AnElasticRunStartsWithWhoIsThereAfterTheLastCall) {
  begin(2, 4);
  join(0), join(1);
  EXPECT_THAT(after(seconds(9)), IsEmpty());
  join(2);
  EXPECT_THAT(after(seconds(9)), IsEmpty());
  EXPECT_THAT(text(after(seconds(1))), ElementsAre("0 start 3", "1 start 3", "2 start 3"));
}

TEST_F(Rounds, ALostNodeIsAFailureAndTheNextRoundDoesWithoutIt) {
  begin(1, 3);
  join(0), join(1), join(2);
  EXPECT_THAT(text(assembly_->lost(1, now_)), ElementsAre("0 fail", "2 fail"));
  ends(0, 5);
  const auto told = ends(2, 5);
  EXPECT_THAT(text(told), ElementsAre("0 wait", "2 wait"));
  EXPECT_THAT(told[0].text, testing::StartsWith("node 1 (host1) was lost"));
  EXPECT_THAT(after(seconds(2)), IsEmpty()) << "it may come back";
  const auto orders = after(seconds(1));
  EXPECT_THAT(text(orders), ElementsAre("0 start 2", "2 start 2"));
  EXPECT_EQ(orders[1].place, 1);
  EXPECT_EQ(orders[0].text, "") << "it was told";
}

TEST_F(Rounds, AFixedRunWaitsForALostNodeToComeBack) {
  begin(2, 2);
  join(0, 0), join(1, 1);
  assembly_->lost(1, now_);
  const auto told = ends(0, 5);
  EXPECT_THAT(text(told), ElementsAre("0 wait"));
  EXPECT_THAT(told[0].text, HasSubstr("Waiting up to 600 s for 1 node: start `fsdp run` there again"));
  EXPECT_THAT(after(seconds(30)), IsEmpty());
  EXPECT_THAT(text(join(2, 1)), ElementsAre("0 start 2", "2 start 2"));
}

TEST_F(Rounds, TooFewNodesForTooLongEndTheRunWithCode4) {
  begin(2, 2);
  join(0);
  EXPECT_THAT(text(after(seconds(600))), ElementsAre("0 over"));
  EXPECT_EQ(assembly_->outcome().exit_code(), 4);
  EXPECT_THAT(report(assembly_->outcome()), HasSubstr("of 2 nodes, 1 came within 600 s: host0"));
}

TEST_F(Rounds, ANodeThatComesLaterMakesTheRunLargerWithoutARestart) {
  begin(1, 2, 0);
  join(0);
  after(seconds(10));
  EXPECT_THAT(text(join(1)), ElementsAre("0 leave"));
  const auto orders = ends(0, 75);
  EXPECT_THAT(text(orders), ElementsAre("0 start 2", "1 start 2"));
  EXPECT_EQ(orders[0].restarts, 1) << "so that ranks go on with what they saved";
  EXPECT_EQ(orders[0].text, "host1 has come; starting all ranks again, on more nodes");
}

TEST_F(Rounds, ANodeTooManyWaitsAndTakesThePlaceOfALostOne) {
  begin(1, 2);
  join(0), join(1);
  EXPECT_THAT(text(join(2)), ElementsAre("2 wait"));
  EXPECT_THAT(text(assembly_->lost(1, now_)), ElementsAre("0 fail"));
  EXPECT_THAT(text(ends(0, 5)), ElementsAre("0 start 2", "2 start 2"));
}

TEST_F(Rounds, AFailureOnTheWayToALargerRoundCounts) {
  begin(1, 2, 0);
  join(0);
  after(seconds(10));
  join(1);
  EXPECT_THAT(text(ends(0, 3)), ElementsAre("0 over", "1 over"));
}

TEST_F(Rounds, ARunThatIsDoneDoesNotGrow) {
  begin(1, 2);
  join(0);
  after(seconds(10));
  join(1);
  EXPECT_THAT(text(ends(0, 0)), ElementsAre("0 over", "1 over"));
}

TEST_F(Rounds, NodesBeyondTheLargestUsableNumberWait) {
  begin(1, 4);
  assembly_.emplace(
      AssemblyRules{.least = 1, .most = 4, .usable = [](int ranks) { return ranks == 4 || ranks == 8; }},
      now_);
  join(0), join(1), join(2);
  EXPECT_THAT(text(after(seconds(10))), ElementsAre("0 start 2", "1 start 2", "2 wait"));
  EXPECT_THAT(text(join(3)), ElementsAre("0 leave", "1 leave"));
}

TEST_F(Rounds, ASignalEndsAFixedRunAndOnlyTheNodeOfAnElasticOne) {
  begin(2, 2);
  join(0), join(1);
  EXPECT_THAT(text(ends(1, 75, -1, 15)), ElementsAre("0 leave"));
  EXPECT_THAT(text(ends(0, 75)), ElementsAre("0 over"));
  EXPECT_EQ(assembly_->outcome().exit_code(), 75);

  begin(1, 2);
  join(0), join(1);
  ends(1, 75, -1, 15);
  EXPECT_THAT(text(ends(0, 75)), ElementsAre("0 wait"));
  EXPECT_THAT(text(after(seconds(3))), ElementsAre("0 start 1"));
}

TEST_F(Rounds, SignalsToAllNodesEndAnElasticRunInAnyOrder) {
  for (const int first : {0, 1}) {
    begin(1, 3);
    join(0), join(1);
    after(seconds(10));
    ends(first, 75, -1, 15);
    const auto orders = text(ends(1 - first, 75, -1, 15));
    EXPECT_THAT(orders, testing::Contains("0 over")) << first;
    EXPECT_EQ(assembly_->outcome().exit_code(), 75);
  }
}

TEST_F(Rounds, ASignalToNode0WhileTheRoundEndsForALargerOneEndsTheRun) {
  begin(1, 2);
  join(0);
  after(seconds(10));
  join(1);
  EXPECT_THAT(text(ends(0, 75, -1, 15)), ElementsAre("0 over", "1 over"));
}

TEST_F(Rounds, RanksThatSavedAndLeftByThemselvesEndTheRun) {
  begin(2, 2);
  join(0), join(1);
  EXPECT_THAT(text(ends(1, 75)), ElementsAre("0 leave"));
  EXPECT_THAT(text(ends(0, 75)), ElementsAre("0 over", "1 over"));
  EXPECT_EQ(assembly_->outcome().exit_code(), 75);
}

TEST_F(Rounds, WhatWouldBeRefusedAgainIsNotStartedAgain) {
  assembly_.emplace(AssemblyRules{.least = 2, .most = 2, .max_restarts = 5, .final_code = 2}, now_);
  join(0), join(1);
  ends(0, 2);
  EXPECT_THAT(text(ends(1, 5)), ElementsAre("0 over", "1 over"));
  EXPECT_THAT(report(assembly_->outcome()), HasSubstr("Not started again"));
}

TEST_F(Rounds, ASignalToNode0EndsAnElasticRunToo) {
  begin(1, 2);
  join(0), join(1);
  EXPECT_THAT(text(ends(0, 75, -1, 15)), ElementsAre("1 leave"));
  EXPECT_THAT(text(ends(1, 75)), ElementsAre("0 over", "1 over"));
}

TEST_F(Rounds, AFailureWhileTheRoundEndsForALargerOneIsTold) {
  begin(1, 3);
  join(0), join(1);
  after(seconds(10));
  join(2);
  EXPECT_THAT(text(assembly_->failing(0)), ElementsAre("1 fail"));
  EXPECT_THAT(assembly_->failing(1), IsEmpty());
}

}  // namespace
}  // namespace fsdp::launch
