#include "comm/shared/rounds.h"

#include <gmock/gmock.h>

#include "unit/comm/control_memory.h"

namespace fsdp::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An operation that writes down what is done with it.
struct ProbeOp final : RoundOp {
  explicit ProbeOp(const std::string& label, int count = 1) : count_(count) {
    info = {"all_gather", label};
    elements = 8;
  }
  int rounds() const override { return count_; }
  bool staged() const override { return true; }
  bool may_publish() const override { return may; }
  void publish(int /*round*/, char* /*bank*/) override { ++published; }
  void consume(int /*round*/, int /*bank*/) override {
    ++consumed;
    if (on_consume) on_consume();
  }

  bool may = true;
  int published = 0;
  int consumed = 0;
  std::function<void()> on_consume;

 private:
  int count_;
};

// One rank; in the world its number is greater by ten.
struct Rank {
  Rank(const ControlView& view, int rank)
      : gate(view, rank, view.size(), nullptr, {10, 11, 12}), rounds(gate, messages) {}

  std::shared_ptr<ProbeOp> issue(const std::string& label, int count = 1) {
    auto op = std::make_shared<ProbeOp>(label, count);
    rounds.issue(op, Clock::now());
    return op;
  }
  // The error that completing `op` without patience throws.
  CommError::Details fault_of(const RoundOpPtr& op) {
    try {
      rounds.complete(op, Clock::now());
    } catch (const CommError& error) {
      return error.details();
    }
    ADD_FAILURE() << "no fault in " << op->info.label;
    return {};
  }

  Gate gate;
  Messages messages{gate};
  Rounds rounds;
};

// All ranks are called by one thread, so what happens when is the test's to say.
class RoundsTest : public ::testing::Test {
 protected:
  ControlView view_ = make_control(2);
  Rank a_{view_, 0};
  Rank b_{view_, 1};
};

TEST_F(RoundsTest, NothingIsReadBeforeEveryRankHasPublished) {
  const auto op = a_.issue("x");
  a_.rounds.move_on();
  EXPECT_EQ(op->published, 1) << "what can be published is, when it is issued";
  EXPECT_EQ(op->consumed, 0);
  const auto theirs = b_.issue("x");
  a_.rounds.move_on();
  EXPECT_TRUE(op->complete());
  EXPECT_FALSE(theirs->complete()) << "each rank reads for itself";
  b_.rounds.complete(theirs, Clock::now());
  EXPECT_TRUE(a_.rounds.idle() && b_.rounds.idle());
}

TEST_F(RoundsTest, OperationsCompleteInTheOrderIssued) {
  std::vector<std::string> order;
  RoundOpPtr last;
  for (const char* label : {"x", "y"}) {
    const auto op = a_.issue(label);
    op->on_consume = [&order, label] { order.emplace_back(label); };
    last = op;
    b_.issue(label);
  }
  a_.rounds.complete(last, Clock::now());
  EXPECT_THAT(order, ElementsAre("x", "y"));
}

TEST_F(RoundsTest, AnOperationThatMustWaitHoldsBackThoseAfterIt) {
  const auto first = std::make_shared<ProbeOp>("x");
  first->may = false;
  a_.rounds.issue(first, Clock::now());
  const auto second = a_.issue("y");
  a_.rounds.move_on();
  EXPECT_EQ(first->published + second->published, 0);
  first->may = true;
  a_.rounds.move_on();
  EXPECT_EQ(first->published, 1);
  b_.issue("x");
  a_.rounds.move_on();
  EXPECT_EQ(second->published, 1);
}

TEST_F(RoundsTest, ABankIsWrittenAgainOnlyWhenEveryRankHasReadIt) {
  const auto op = a_.issue("long", 3);
  const auto theirs = b_.issue("long", 3);
  a_.rounds.move_on();
  EXPECT_EQ(op->published, kBanks) << "the third round needs the bank of the first";
  b_.rounds.move_on();
  a_.rounds.move_on();
  EXPECT_EQ(op->published, 3);
  b_.rounds.complete(theirs, Clock::now());
  a_.rounds.complete(op, Clock::now());
}

TEST_F(RoundsTest, CellsAndRecordsAreUsedAgain) {
  for (int i = 0; i < 3 * std::max(kCells, kRecords); ++i) {
    const auto label = std::to_string(i);
    const auto op = a_.issue(label);
    a_.rounds.move_on();
    ASSERT_EQ(op->consumed, 0) << "rank 1 was in this cell before, but not in round " << i;
    const auto theirs = b_.issue(label);
    a_.rounds.complete(op, Clock::now());
    b_.rounds.complete(theirs, Clock::now());
  }
}

TEST_F(RoundsTest, ARankGetsOnlySoFarAhead) {
  for (int i = 0; i < kMaxPending; ++i) a_.issue("x");
  EXPECT_THROW(a_.issue("one too many"), CommError);
  EXPECT_EQ(a_.gate.fault().culprit, 1);
}

TEST_F(RoundsTest, DifferentOperationsAreNamedOnBothSides) {
  const auto op = a_.issue("head");
  const auto theirs = b_.issue("block.3");
  for (const auto& met : {a_.fault_of(op), b_.fault_of(theirs)}) {
    EXPECT_EQ(met.fault, CommFault::mismatch);
    EXPECT_EQ(met.culprit, 1) << "as the first to look reports it";
    EXPECT_THAT(met.reason, AllOf(HasSubstr("it issued all_gather 'block.3' of 8 elements"),
                                  HasSubstr("rank 10 issued all_gather 'head' of 8 elements")));
  }
  EXPECT_EQ(op->consumed + theirs->consumed, 0) << "no byte was read";
}

TEST(Rounds, EverythingThatRanksMustAgreeOnIsCompared) {
  const std::function<void(RoundOp&)> changes[] = {
      [](RoundOp& op) { op.info.op = "broadcast"; }, [](RoundOp& op) { op.info.label = "other"; },
      [](RoundOp& op) { op.elements = 9; },          [](RoundOp& op) { op.argument = 1; },
      [](RoundOp& op) { op.dtype = DType::f32; },    [](RoundOp& op) { op.allocation = 1; },
      [](RoundOp& op) { op.offset = 64; },
  };
  for (const auto& change : changes) {
    const ControlView view = make_control(2);
    Rank a(view, 0);
    Rank b(view, 1);
    const auto op = a.issue("x");
    const auto theirs = std::make_shared<ProbeOp>("x");
    change(*theirs);
    b.rounds.issue(theirs, Clock::now());
    EXPECT_EQ(a.fault_of(op).fault, CommFault::mismatch) << "change " << (&change - changes);
  }
}

TEST_F(RoundsTest, WhatALeavingRankIssuesIsNoMismatch) {
  b_.gate.note("a bad batch", 1);
  const auto op = a_.issue("x");
  b_.issue("on the way out");
  const auto met = a_.fault_of(op);
  EXPECT_EQ(met.fault, CommFault::peer_left);
  EXPECT_EQ(met.reason, "a bad batch");
}

TEST_F(RoundsTest, AFaultEndsWhatIsPendingAndEveryLaterCall) {
  const auto op = a_.issue("x");
  b_.gate.report(CommFault::timeout, 1, "late");
  EXPECT_EQ(a_.fault_of(op).fault, CommFault::timeout);
  EXPECT_TRUE(a_.rounds.idle());
  EXPECT_EQ(a_.fault_of(op).reason, "late") << "the same again";
  EXPECT_THROW(a_.issue("y"), CommError);
}

// Rank 1 sends only when rank 0 has done its part of an operation.
TEST_F(RoundsTest, OperationsMoveOnWhileARankWaitsForAMessage) {
  const auto op = a_.issue("x");
  b_.issue("x");
  const at::Tensor sent = at::arange(5, at::kFloat);
  const at::Tensor got = at::zeros({5});
  const auto message = a_.messages.post(got, 1, /*sending=*/false, "note");
  op->on_consume = [&] { b_.messages.post(sent, 0, /*sending=*/true, "note"); };
  a_.rounds.wait_message(*message, {"recv", "note"}, Clock::now(), deadline_after(Milliseconds(5000)));
  EXPECT_TRUE(got.equal(sent));
}

TEST(Rounds, ATimeoutBlamesARankThatIsNotWaitingItself) {
  const ControlView view = make_control(3);
  Rank a(view, 0);
  Rank waiting(view, 1);
  Rank silent(view, 2);
  const auto op = a.issue("x");
  view.page(1).seen_waiting = (Clock::now() + std::chrono::hours(1)).time_since_epoch().count();
  const auto met = a.fault_of(op);
  EXPECT_EQ(met.fault, CommFault::timeout);
  EXPECT_EQ(met.culprit, 2);
  EXPECT_THAT(met.reason, HasSubstr("ranks not there: 12"));
}

}  // namespace
}  // namespace fsdp::detail
