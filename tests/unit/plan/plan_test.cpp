#include "plan/plan.h"

#include <gmock/gmock.h>

#include "plan_words.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;

TEST(Plan, ThreeBlocksForwardAndBackward) {
  const Plan plan = make_plan(moments_of("0 0 1 2 2 | 2 1 1 0"), units_of({1, 1, 1}), {});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",   //
                                       "f1: release 0@0, use 1@1, gather 2@0",  //
                                       "f2: release 1@1, use 2@0",              //
                                       "b2: use 2@0, gather 1@1",               //
                                       "b1: release 2@0, use 1@1, gather 0@0",  //
                                       "b0: release 1@1, use 0@0",              //
                                       "end: release 0@0"));
  EXPECT_EQ(plan.arena_bytes, 2 * kBlock);
}

TEST(Plan, ATiedRootUsedFirstAndLastIsNotHeldInBetween) {
  const Plan plan = make_plan(moments_of("0 1 2 0 | 0 2 1 0"), units_of({4, 1, 1}), {});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0, gather 1@4",   //
                                       "f1: release 0@0, use 1@4, gather 2@0",  //
                                       "f2: release 1@4, use 2@0, gather 0@1",  //
                                       "f0: release 2@0, use 0@1",              //
                                       "b0: use 0@1, gather 2@0",               //
                                       "b2: release 0@1, use 2@0, gather 1@4",  //
                                       "b1: release 2@0, use 1@4, gather 0@0",  //
                                       "b0: release 1@4, use 0@0",              //
                                       "end: release 0@0"));
  EXPECT_EQ(plan.arena_bytes, 5 * kBlock);
}

TEST(Plan, OneUnitIsGatheredOnce) {
  EXPECT_THAT(words(make_plan(moments_of("0 0 | 0 0"), units_of({1}), {})),
              ElementsAre("f0: gather 0@0, use 0@0", "b0: use 0@0", "end: release 0@0"));
}

TEST(Plan, NothingUsedIsNothingPlanned) {
  const Plan plan = make_plan({}, units_of({1, 1}), {});
  EXPECT_THAT(words(plan), ElementsAre("end: "));
  EXPECT_EQ(plan.arena_bytes, 0);
}

TEST(Plan, ForwardOnlyReleasesTheLastUnitAtTheEnd) {
  EXPECT_THAT(words(make_plan(moments_of("0 1 2"), units_of({1, 1, 1}), {})),
              ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",   //
                          "f1: release 0@0, use 1@1, gather 2@0",  //
                          "f2: release 1@1, use 2@0",              //
                          "end: release 2@0"));
}

TEST(Plan, KeptUnitsAreGatheredOnce) {
  const Plan plan = make_plan(moments_of("0 1 2 | 2 1 0"), units_of({1, 1, 1}, {0, 1, 2}), {});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",  //
                                       "f1: use 1@1, gather 2@2",              //
                                       "f2: use 2@2",                          //
                                       "b2: use 2@2",                          //
                                       "b1: release 2@2, use 1@1",             //
                                       "b0: release 1@1, use 0@0",             //
                                       "end: release 0@0"));
  EXPECT_EQ(plan.arena_bytes, 3 * kBlock);
}

TEST(Plan, AKeptUnitWithoutBackwardIsReleasedAfterForward) {
  EXPECT_THAT(words(make_plan(moments_of("0 1 | 1"), units_of({1, 1}, {0}), {})),
              ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",  //
                          "f1: release 0@0, use 1@1",             //
                          "b1: use 1@1",                          //
                          "end: release 1@1"));
}

TEST(Plan, OneSlotGathersOnlyWhenTheUnitBeforeIsGone) {
  const Plan plan = make_plan(moments_of("0 1 | 1 0"), units_of({1, 1}),
                              {.forward_ahead = 5, .backward_ahead = 5, .max_slots = 1});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0",               //
                                       "f1: release 0@0, gather 1@0, use 1@0",  //
                                       "b1: use 1@0",                           //
                                       "b0: release 1@0, gather 0@0, use 0@0",  //
                                       "end: release 0@0"));
  EXPECT_EQ(plan.arena_bytes, kBlock);
}

TEST(Plan, SlotsLimitHowFarAheadUnitsAreGathered) {
  const std::string first_of[] = {
      "f0: gather 0@0, use 0@0, gather 1@1, gather 2@2, gather 3@3",  // no limit
      "f0: gather 0@0, use 0@0",
      "f0: gather 0@0, use 0@0, gather 1@1",
      "f0: gather 0@0, use 0@0, gather 1@1, gather 2@2",
  };
  for (const int slots : {0, 1, 2, 3}) {
    const Plan plan = make_plan(moments_of("0 1 2 3 4 5"), units_of({1, 1, 1, 1, 1, 1}),
                                {.forward_ahead = 3, .backward_ahead = 3, .max_slots = slots});
    EXPECT_EQ(words(plan).front(), first_of[slots]);
    EXPECT_EQ(plan.arena_bytes, (slots == 0 ? 4 : slots) * kBlock);
  }
}

TEST(Plan, EachPhaseLooksAheadByItsOwnNumber) {
  const Plan plan = make_plan(moments_of("0 1 2 3 | 3 4 5 6"), units_of({1, 1, 1, 1, 1, 1, 1}),
                              {.forward_ahead = 2, .backward_ahead = 0, .max_slots = 0});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0, gather 1@1, gather 2@2",  //
                                       "f1: release 0@0, use 1@1, gather 3@0",             //
                                       "f2: release 1@1, use 2@2",                         //
                                       "f3: release 2@2, use 3@0",                         //
                                       "b3: use 3@0",                                      //
                                       "b4: release 3@0, gather 4@0, use 4@0",             //
                                       "b5: release 4@0, gather 5@0, use 5@0",             //
                                       "b6: release 5@0, gather 6@0, use 6@0",             //
                                       "end: release 6@0"));
}

TEST(Plan, UnitsWithoutBytesArePlannedLikeOthers) {
  const auto units = units_of({1, 0, 1});
  const Plan plan = make_plan(moments_of("0 1 2 | 2 1 0"), units, {});
  EXPECT_EQ(plan.arena_bytes, kBlock);
  EXPECT_EQ(check_plan(plan, units, {}), "");
}

}  // namespace
}  // namespace fsdp::testing
