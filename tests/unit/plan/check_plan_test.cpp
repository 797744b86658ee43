#include <gmock/gmock.h>

#include "plan/plan.h"
#include "plan_words.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::HasSubstr;

// Plans that are broken in one place each.
class PlanCheck : public ::testing::Test {
 protected:
  std::string check() const { return check_plan(plan_, units_, options_); }
  Instruction& at(size_t run, size_t i) { return plan_.moments[run].steps[i]; }
  void drop(size_t run, size_t i) {
    auto& list = plan_.moments[run].steps;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<UnitNeed> units_ = units_of({1, 1, 1});
  PlanOptions options_;
  Plan plan_ = make_plan(moments_of("0 1 2 | 2 1 0"), units_, options_);
};

TEST_F(PlanCheck, AcceptsThePlanAsMade) { EXPECT_EQ(check(), ""); }

TEST_F(PlanCheck, SeesAMissingGather) {
  drop(0, 2);
  EXPECT_THAT(check(), HasSubstr("before run 1: use of unit 1 at 256: it is not gathered"));
}

TEST_F(PlanCheck, SeesAMissingRelease) {
  drop(1, 0);
  EXPECT_THAT(check(), HasSubstr("before run 1: gather of unit 2 at 0: it overlaps unit 0"));
}

TEST_F(PlanCheck, SeesAMissingReleaseAtTheEnd) {
  plan_.after.clear();
  EXPECT_THAT(check(), HasSubstr("unit 0 is still gathered"));
}

TEST_F(PlanCheck, SeesOverlap) {
  at(0, 2).offset = 0;
  EXPECT_THAT(check(), HasSubstr("gather of unit 1 at 0: it overlaps unit 0"));
}

TEST_F(PlanCheck, SeesAnOffsetOutsideOfTheArena) {
  at(0, 2).offset = 2 * kBlock;
  EXPECT_THAT(check(), HasSubstr("its 256 bytes leave the arena of 512"));
  at(0, 2).offset = -kBlock;
  EXPECT_THAT(check(), HasSubstr("its 256 bytes leave the arena of 512"));
}

TEST_F(PlanCheck, SeesAUseBeforeTheGather) {
  std::swap(at(0, 0), at(0, 1));
  EXPECT_THAT(check(), HasSubstr("before run 0: use of unit 0 at 0: it is not gathered"));
}

TEST_F(PlanCheck, SeesASecondGather) {
  plan_.moments[0].steps.push_back(at(0, 2));
  EXPECT_THAT(check(), HasSubstr("gather of unit 1 at 256: it is gathered already"));
}

TEST_F(PlanCheck, SeesAMissingUse) {
  drop(2, 1);
  EXPECT_THAT(check(), HasSubstr("before run 2: 0 uses"));
}

TEST_F(PlanCheck, SeesAUseAtAnotherPlace) {
  at(1, 1).offset = 0;
  EXPECT_THAT(check(), HasSubstr("use of unit 1 at 0: it was gathered at 256"));
}

TEST_F(PlanCheck, SeesAReleaseTooEarly) {
  plan_.moments[0].steps.push_back({Action::release, 0, 0});
  EXPECT_THAT(check(), HasSubstr("before run 0: its unit is released before it runs"));
}

TEST_F(PlanCheck, SeesAGatherForNothing) {
  plan_.moments[0].steps.push_back({Action::release, 1, kBlock});
  EXPECT_THAT(check(), HasSubstr("release of unit 1 at 256: it was gathered and never used"));
}

TEST_F(PlanCheck, SeesMoreUnitsThanSlots) {
  options_.max_slots = 1;
  EXPECT_THAT(check(), HasSubstr("gather of unit 1 at 256: all slots are taken"));
}

TEST_F(PlanCheck, SeesAUnitThatDoesNotExist) {
  at(0, 2).unit = 3;
  EXPECT_THAT(check(), HasSubstr("gather of unit 3 at 256: there is no such unit"));
}

// The same for gradients: unit 1's are reduced beside unit 0's run.
class PlanCheckGradients : public ::testing::Test {
 protected:
  PlanCheckGradients() {
    for (UnitNeed& unit : units_) unit.buffer_bytes = kBlock;
    std::vector<Moment> recorded = moments_of("0 1 | 1 0 .");
    recorded[2].steps = {{.action = Action::open, .unit = 1}};
    recorded[3].steps = {{.action = Action::reduce, .unit = 1}, {.action = Action::open, .unit = 0}};
    recorded[4].steps = {{.action = Action::reduce, .unit = 0},
                         {.action = Action::agree},
                         {.action = Action::settle, .unit = 1},
                         {.action = Action::settle, .unit = 0}};
    plan_ = make_plan(recorded, units_, {});
  }
  std::string check() const { return check_plan(plan_, units_, {}); }
  Instruction& at(size_t moment, size_t i) { return plan_.moments[moment].steps[i]; }
  void drop(size_t moment, size_t i) {
    auto& list = plan_.moments[moment].steps;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<UnitNeed> units_ = units_of({1, 1});
  Plan plan_;
};

TEST_F(PlanCheckGradients, AcceptsThePlanAsMade) {
  EXPECT_EQ(check(), "");
  EXPECT_EQ(plan_.buffer_bytes, 2 * kBlock);
}

TEST_F(PlanCheckGradients, SeesABufferThatOthersStillRead) {
  at(3, 1).offset = at(4, 0).offset = at(2, 0).offset;
  EXPECT_THAT(check(), HasSubstr("before run 3: open of unit 0 at 0: it overlaps unit 1"));
}

TEST_F(PlanCheckGradients, SeesABufferOutsideOfTheArena) {
  plan_.buffer_bytes = kBlock;
  EXPECT_THAT(check(), HasSubstr("open of unit 0 at 256: its 256 bytes leave the arena of 256"));
}

TEST_F(PlanCheckGradients, SeesAReductionOfABufferThatIsNotOpen) {
  drop(2, 0);
  EXPECT_THAT(check(), HasSubstr("before run 3: reduce of unit 1 at 0: its buffer is not open"));
}

TEST_F(PlanCheckGradients, SeesAReductionAtAnotherPlace) {
  at(3, 0).offset = kBlock;
  EXPECT_THAT(check(), HasSubstr("reduce of unit 1 at 256: its buffer was opened at 0"));
}

TEST_F(PlanCheckGradients, SeesASecondReductionBeforeTheFirstSettled) {
  plan_.buffer_bytes = 3 * kBlock;
  plan_.moments[3].steps.push_back({.action = Action::open, .unit = 1, .offset = 2 * kBlock});
  plan_.moments[3].steps.push_back({.action = Action::reduce, .unit = 1, .offset = 2 * kBlock});
  EXPECT_THAT(check(), HasSubstr("reduce of unit 1 at 512: its last sum has not settled"));
}

TEST_F(PlanCheckGradients, SeesASumThatNeverArrives) {
  drop(4, 2);
  EXPECT_THAT(check(), HasSubstr("at the end of a backward: the gradient buffer of unit 1 has not settled"));
}

TEST_F(PlanCheckGradients, SeesASettleOfNothing) {
  plan_.moments[3].steps.insert(plan_.moments[3].steps.begin(), {.action = Action::settle, .unit = 1});
  EXPECT_THAT(check(), HasSubstr("before run 3: settle of unit 1 at -1: it was not reduced"));
}

TEST_F(PlanCheckGradients, SeesASumOverRowsThatWasNotBegun) {
  plan_.moments[2].steps.push_back({.action = Action::reduce_across, .unit = 1});
  EXPECT_THAT(check(), HasSubstr("before run 2: reduce_across of unit 1 at -1: it was not reduced"));
}

TEST_F(PlanCheckGradients, SeesGradientsThatAreNeverReduced) {
  plan_.moments[4].steps.push_back({.action = Action::open, .unit = 1, .offset = 0});
  EXPECT_THAT(check(), HasSubstr("after the last run: the gradient buffer of unit 1 is still open"));
}

TEST_F(PlanCheckGradients, SeesAnAgreementInTheMiddleOfABackward) {
  plan_.moments[3].steps.push_back({.action = Action::agree});
  EXPECT_THAT(check(), HasSubstr("before run 3: agree of unit 0 at -1: no backward ends here"));
}

}  // namespace
}  // namespace fsdp::testing
