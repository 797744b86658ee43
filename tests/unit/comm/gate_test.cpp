#include "comm/shared/gate.h"

#include <gmock/gmock.h>

#include <set>

#include "unit/comm/control_memory.h"

namespace fsdp::detail {
namespace {

using ::testing::HasSubstr;

class Deaths final : public Liveness {
 public:
  explicit Deaths(std::set<int> ranks) : ranks_(std::move(ranks)) {}
  bool dead(int rank) override { return ranks_.contains(rank); }

 private:
  std::set<int> ranks_;
};

// Three ranks of one process. Rank 0 waits; what the others do is called by hand.
class GateTest : public ::testing::Test {
 protected:
  Gate make(int rank, std::set<int> dead = {}) {
    return {view_, rank, /*ranks_on_host=*/3, std::make_unique<Deaths>(std::move(dead))};
  }

  // Waits as rank 0 for what never comes, and not for long.
  static Gate::Outcome wait_in_vain(Gate& gate, bool needs_others = false) {
    return gate.wait(
        kArrivals, Clock::now(), [] { return false; }, [&](int) { return needs_others; }, [] {});
  }

  ControlView view_ = make_control(3);
};

CommFault kind_of(const Gate& gate) { return static_cast<CommFault>(gate.fault().kind - 1); }

TEST_F(GateTest, OnlyThoseWhoSleepForAnEventAreRung) {
  Gate gate = make(0);
  view_.page(1).asleep = kArrivals;
  gate.ring(kArrivals);
  gate.ring(kMessages | kCompletions);
  EXPECT_EQ(view_.page(1).doorbell, 1u);
  EXPECT_EQ(view_.page(2).doorbell, 0u) << "rank 2 is awake";
  EXPECT_EQ(view_.page(0).doorbell, 0u) << "a rank does not ring itself";
}

TEST_F(GateTest, AWaitEndsWhenItIsReadyOrAtItsDeadline) {
  Gate gate = make(0);
  const auto wait_for = [&](bool ready) {
    return gate.wait(
        kArrivals, Clock::now(), [&] { return ready; }, [](int) { return true; }, [] {});
  };
  EXPECT_EQ(wait_for(true), Gate::Outcome::ready);
  EXPECT_EQ(wait_for(false), Gate::Outcome::timeout);
  EXPECT_EQ(view_.page(0).asleep, 0u) << "who has left a wait sleeps for nothing";
}

TEST_F(GateTest, TheFirstFaultIsTheOneAllRanksReport) {
  Gate first = make(0);
  Gate second = make(1);
  second.report(CommFault::timeout, 2, "late");
  first.report(CommFault::aborted, 0, "given up");
  for (const Gate* gate : {&first, &second}) {
    EXPECT_EQ(kind_of(*gate), CommFault::timeout);
    EXPECT_EQ(gate->fault().culprit, 2);
    EXPECT_EQ(gate->fault().reporter, 1);
    EXPECT_EQ(gate->fault_reason(), "late");
    EXPECT_FALSE(gate->aborted());
  }
  EXPECT_EQ(wait_in_vain(first), Gate::Outcome::fault);
}

TEST_F(GateTest, AReportWakesWhoeverSleeps) {
  Gate gate = make(0);
  for (const int r : {1, 2}) view_.page(r).asleep = r == 1 ? kMessages : kCompletions;
  gate.report(CommFault::aborted, 0, "given up");
  EXPECT_EQ(view_.page(1).doorbell, 1u);
  EXPECT_EQ(view_.page(2).doorbell, 1u);
}

TEST_F(GateTest, LongReasonsAreCut) {
  Gate gate = make(0);
  gate.report(CommFault::aborted, 0, std::string(10 * kReasonBytes, 'x'));
  EXPECT_EQ(gate.fault_reason(), std::string(kReasonBytes - 1, 'x'));
}

TEST_F(GateTest, ARankThatLeftIsAFaultForThoseWhoNeedIt) {
  Gate gate = make(0);
  make(1).leave(true);
  EXPECT_EQ(wait_in_vain(gate, /*needs_others=*/false), Gate::Outcome::timeout);
  EXPECT_FALSE(gate.faulted());
  EXPECT_EQ(wait_in_vain(gate, /*needs_others=*/true), Gate::Outcome::fault);
  EXPECT_EQ(kind_of(gate), CommFault::peer_left);
  EXPECT_EQ(gate.fault().culprit, 1);
  EXPECT_THAT(gate.fault_reason(), HasSubstr("closed its communicator"));
}

TEST_F(GateTest, ARankIsReportedInTheWordsItNotedBeforeItLeft) {
  Gate gate = make(0);
  Gate leaver = make(1);
  leaver.note("rank 2 sent garbage", 2);
  leaver.leave(true);
  EXPECT_EQ(wait_in_vain(gate, /*needs_others=*/true), Gate::Outcome::fault);
  EXPECT_EQ(gate.fault().culprit, 2) << "whom the note blames";
  EXPECT_EQ(gate.fault_reason(), "rank 2 sent garbage");
}

TEST_F(GateTest, ANoteCanBeTakenBack) {
  Gate gate = make(0);
  Gate leaver = make(1);
  leaver.note("a bad batch", 1);
  EXPECT_TRUE(gate.noted(1));
  leaver.note("", 1);
  EXPECT_FALSE(gate.noted(1));
}

TEST_F(GateTest, WhatBecomesReadyAsTheGroupFailsIsGoodButNotAfterAnAbort) {
  for (const bool abort : {false, true}) {
    view_ = make_control(3);
    Gate gate = make(0);
    make(1).leave(true);
    bool ready = false;
    const auto outcome = gate.wait(
        kArrivals, deadline_after(Milliseconds(5000)), [&] { return ready; },
        [&](int) {
          if (abort) gate.report(CommFault::aborted, 2, "given up");
          return ready = true;
        },
        [] {});
    EXPECT_EQ(outcome, abort ? Gate::Outcome::fault : Gate::Outcome::ready);
  }
}

TEST_F(GateTest, ADeadPeerIsAFault) {
  Gate gate = make(0, {1});
  gate.look_for_dead();
  EXPECT_EQ(kind_of(gate), CommFault::peer_died);
  EXPECT_EQ(gate.fault().culprit, 1);
}

TEST_F(GateTest, AProcessThatEndsAfterItsRankLeftIsNoDeath) {
  Gate gate = make(0, {1});
  make(1).leave(true);
  gate.look_for_dead();
  EXPECT_FALSE(gate.faulted());
}

TEST_F(GateTest, WhoLeftBecauseAnotherDiedIsNotBlamed) {
  Gate gate = make(0, {1});
  make(2).leave(false);
  gate.report_left(2);
  EXPECT_EQ(kind_of(gate), CommFault::peer_died);
  EXPECT_EQ(gate.fault().culprit, 1);
}

TEST_F(GateTest, ARankIsKnownToWaitForAMoment) {
  Gate gate = make(0);
  const Gate other = make(1);
  EXPECT_FALSE(other.waits(0));
  bool seen = false;
  for (int i = 0; i < 100 && !seen; ++i) {  // this thread may lose its processor between the two
    wait_in_vain(gate);
    seen = other.waits(0);
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace fsdp::detail
