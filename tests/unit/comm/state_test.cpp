// Which errors of a group are explained by the operations its ranks were asked for.
#include "comm/state.h"

#include <gtest/gtest.h>

#include "support/fake_comm.h"
#include "unit/comm/group_of_two.h"

namespace fsdp::detail {
namespace {

// Rank 0 of a group whose rank 1 was asked for something else, and says so in the store.
class CommStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = c10::make_intrusive<::c10d::HashStore>();
    OrderLog of_rank_1;
    of_rank_1.add("all_gather", "unit 2", 64);
    of_rank_1.share(group_of_two(store, 1));
    state_.info = group_of_two(store, 0);
    state_.backend = backend_;
    state_.order.add("all_gather", "unit 1", 64);
  }

  // The fault that a caller sees when the backend throws `fault`.
  CommFault seen(CommFault fault, const std::string& reason = "") {
    CommError::Details details;
    details.fault = fault;
    details.reason = reason;
    try {
      state_.explained([&] { throw CommError(details); });
    } catch (const CommError& error) {
      return error.details().fault;
    }
    ADD_FAILURE() << "the error did not arrive";
    return fault;
  }

  std::shared_ptr<testing::FakeBackend> backend_ = std::make_shared<testing::FakeBackend>();
  CommState state_;
};

TEST_F(CommStateTest, AnAbortBecauseOfTheOrderSaysHowRanksDiffer) {
  backend_->cause = AbortCause::order;
  EXPECT_EQ(seen(CommFault::aborted, "in any words"), CommFault::mismatch);
}

TEST_F(CommStateTest, AnAbortByTheCallerStaysOneWhateverItsWords) {
  EXPECT_EQ(seen(CommFault::aborted, "ranks were asked for different operations"), CommFault::aborted);
}

TEST_F(CommStateTest, FailuresThatADifferenceMayCauseSayHowRanksDiffer) {
  EXPECT_EQ(seen(CommFault::backend), CommFault::mismatch);
  EXPECT_EQ(seen(CommFault::timeout), CommFault::mismatch);
}

TEST_F(CommStateTest, OtherFaultsArriveAsTheyAre) {
  backend_->cause = AbortCause::order;
  EXPECT_EQ(seen(CommFault::peer_died), CommFault::peer_died);
  EXPECT_EQ(seen(CommFault::peer_left), CommFault::peer_left);
}

TEST_F(CommStateTest, ABackendThatComparesOperationsIsBelieved) {
  backend_->compares = true;
  EXPECT_EQ(seen(CommFault::backend), CommFault::backend);
}

}  // namespace
}  // namespace fsdp::detail
