// Lists that say what is gathered when a unit is used.
#include <gmock/gmock.h>

#include "plan/plan.h"
#include "plan_words.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan sound_plan(const std::string& trace, const std::vector<UnitNeed>& units, const PlanOptions& options) {
  Plan plan = make_plan(moments_of(trace), units, options);
  EXPECT_EQ(check_plan(plan, units, options), "") << ::testing::PrintToString(words(plan));
  return plan;
}

TEST(PlanLists, AreGatheredInTheirOrderWhenTheUnitIsUsed) {
  const std::vector<UnitId> none;
  const PlanOptions options{.forward_lists = {std::vector<UnitId>{2, 1}, none, none, none}};
  EXPECT_THAT(words(sound_plan("0 1 2 3", units_of({1, 1, 1, 1}), options)),
              ElementsAre("f0: gather 0@0, use 0@0, gather 2@2, gather 1@1",  //
                          "f1: release 0@0, use 1@1",                         //
                          "f2: release 1@1, use 2@2",                         //
                          "f3: release 2@2, gather 3@0, use 3@0",             //
                          "end: release 3@0"));
}

// Unit 1 has an empty list, so unit 2 comes when it is used; units without a list look ahead as before.
TEST(PlanLists, AnEmptyOneGathersNothingAhead) {
  PlanOptions options;
  options.forward_lists = {std::nullopt, std::vector<UnitId>{}};
  EXPECT_THAT(words(sound_plan("0 1 2 3", units_of({1, 1, 1, 1}), options)),
              ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",               //
                          "f1: release 0@0, use 1@1",                          //
                          "f2: release 1@1, gather 2@0, use 2@0, gather 3@1",  //
                          "f3: release 2@0, use 3@1",                          //
                          "end: release 3@1"));
}

TEST(PlanLists, EachPhaseHasItsOwn) {
  PlanOptions options{.max_slots = 1};
  options.backward_lists = {std::nullopt, std::nullopt, std::vector<UnitId>{0}};
  EXPECT_THAT(words(sound_plan("0 1 2 | 2 1 0", units_of({1, 1, 1}), options)),
              ElementsAre("f0: gather 0@0, use 0@0",               //
                          "f1: release 0@0, gather 1@0, use 1@0",  //
                          "f2: release 1@0, gather 2@0, use 2@0",  //
                          "b2: use 2@0, gather 0@1",               //
                          "b1: release 2@0, gather 1@0, use 1@0",  //
                          "b0: release 1@0, use 0@1",              //
                          "end: release 0@1"));
}

// A list of forward may name what backward uses next.
TEST(PlanLists, ReachIntoTheNextPhase) {
  PlanOptions options{.max_slots = 1};
  options.forward_lists = {std::nullopt, std::nullopt, std::vector<UnitId>{1}};
  EXPECT_THAT(words(sound_plan("0 1 2 | 2 1 0", units_of({1, 1, 1}), options)),
              ElementsAre("f0: gather 0@0, use 0@0",               //
                          "f1: release 0@0, gather 1@0, use 1@0",  //
                          "f2: gather 2@1, use 2@1",               //
                          "b2: use 2@1",                           //
                          "b1: release 2@1, use 1@0",              //
                          "b0: release 1@0, gather 0@0, use 0@0",  //
                          "end: release 0@0"));
}

TEST(PlanLists, WhatIsNotUsedAgainIsPassedOver) {
  PlanOptions options{.max_slots = 1};
  options.forward_lists = {std::nullopt, std::vector<UnitId>{0, 1, 2}};
  EXPECT_THAT(words(sound_plan("0 1", units_of({1, 1, 1}), options)),
              ElementsAre("f0: gather 0@0, use 0@0",               //
                          "f1: release 0@0, gather 1@0, use 1@0",  //
                          "end: release 1@0"));
}

// The gathers of `post` come before the reduction; those of a list behind the use, as everywhere.
TEST(PlanLists, OfPostComeAfterTheUse) {
  PlanOptions options{.backward = Prefetch::post};
  options.backward_lists = {std::nullopt, std::nullopt, std::vector<UnitId>{1}};
  const Plan plan = sound_plan("0 1 2 | 2 1 0", units_of({1, 1, 1}), options);
  EXPECT_EQ(words(plan)[3], "b2: use 2@0, gather 1@1");
  EXPECT_EQ(words(plan)[4], "b1: release 2@0, use 1@1");
  EXPECT_EQ(words(plan)[5], "b0: release 1@1, gather 0@0, use 0@0");
}

TEST(PlanLists, TheCheckCountsOtherUnits) {
  PlanOptions options{.forward_ahead = 0, .backward_ahead = 0, .max_slots = 2};
  options.forward_lists = {std::vector<UnitId>{2, 3}};
  const auto units = units_of({1, 1, 1, 1, 1});
  Plan plan = sound_plan("0 1 2 3 4", units, options);
  plan.arena_bytes = 9 * kBlock;
  plan.moments[1].steps.push_back({Action::gather, 4, 8 * kBlock});
  EXPECT_THAT(check_plan(plan, units, options), HasSubstr("before run 4: gather of unit 4"));
  options.max_slots = 1;
  EXPECT_THAT(check_plan(plan, units, options),
              HasSubstr("before run 1: gather of unit 4 at 2048: all slots are taken"));
}

// A unit that a list has gathered counts from its use on.
TEST(PlanLists, TheCheckCountsAListedUnitOnceItWasUsed) {
  PlanOptions options{.forward_ahead = 1, .backward_ahead = 0, .max_slots = 2};
  options.forward_lists = {std::vector<UnitId>{1}};
  const auto units = units_of({1, 1, 1, 1});
  Plan plan = sound_plan("0 1 2 3", units, options);
  plan.arena_bytes = 9 * kBlock;
  plan.moments[1].steps.push_back({Action::gather, 3, 8 * kBlock});
  EXPECT_THAT(check_plan(plan, units, options),
              HasSubstr("before run 1: gather of unit 3 at 2048: all slots are taken"));
}

}  // namespace
}  // namespace fsdp::testing
