#include "plan/known_plans.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdp::detail {
namespace {

const std::vector<UnitNeed> kNeeds(4, UnitNeed{.slot_bytes = 0, .buffer_bytes = 256});

Moment forward(UnitId unit) { return {.run = Access{unit, Phase::forward}}; }
Moment backward(UnitId unit, std::vector<Instruction> steps = {}) {
  return {.run = Access{unit, Phase::backward}, .steps = std::move(steps)};
}
Instruction open(UnitId unit) { return {.action = Action::open, .unit = unit}; }
Instruction reduce(UnitId unit) { return {.action = Action::reduce, .unit = unit, .used = {true}}; }
Moment end_of(const std::vector<UnitId>& units) {
  Moment end{.run = {}, .steps = {{.action = Action::agree}}};
  for (const UnitId unit : units) end.steps.push_back({.action = Action::settle, .unit = unit});
  return end;
}

// Units 0 and 1 in turn.
std::vector<Moment> cycle_of(size_t runs) {
  std::vector<Moment> moments;
  for (size_t i = 0; i < runs; ++i) moments.push_back(forward(static_cast<UnitId>(i % 2)));
  return moments;
}

bool knows(KnownPlans& plans, const CycleKind& kind, size_t runs) {
  const auto likely = plans.likely(kind);
  return std::any_of(likely.begin(), likely.end(),
                     [&](const Plan* plan) { return plan->moments.size() == runs; });
}

TEST(KnownPlans, HundredsOfShortCyclesAreKept) {
  KnownPlans plans;
  for (size_t runs = 1; runs <= 300; ++runs) plans.add({}, cycle_of(runs), kNeeds, {});
  EXPECT_EQ(plans.likely({}).size(), 300U);
  EXPECT_EQ(plans.trainings(), 300U);
}

TEST(KnownPlans, ThoseFollowedLongestAgoGo) {
  KnownPlans plans;
  const size_t kRuns = 11'000;  // nine of these fit
  for (size_t i = 0; i < 9; ++i) plans.add({}, cycle_of(kRuns + i), kNeeds, {});
  ASSERT_TRUE(knows(plans, {}, kRuns));
  for (const Plan* plan : plans.likely({}))
    if (plan->moments.size() == kRuns) plans.followed({}, plan);
  EXPECT_EQ(plans.likely({}).size(), 9U);
  plans.add({}, cycle_of(kRuns + 9), kNeeds, {});
  EXPECT_TRUE(knows(plans, {}, kRuns)) << "the oldest, and followed since";
  EXPECT_FALSE(knows(plans, {}, kRuns + 1));
  EXPECT_TRUE(knows(plans, {}, kRuns + 9));
  plans.add({.training = false}, cycle_of(kRuns), kNeeds, {});
  EXPECT_EQ(plans.likely({}).size(), 9U) << "kinds do not count together";
}

const Access kSecond{1, Phase::backward}, kFirst{0, Phase::backward};

TEST(KnownPlans, BoundariesTellWhatWasReduced) {
  KnownPlans plans;
  EXPECT_EQ(plans.boundary({}, kSecond, kFirst), nullptr);
  plans.add({}, {forward(0), forward(1), backward(1, {open(1)}), backward(0, {reduce(1)}), end_of({1})},
            kNeeds, {});
  const Boundary* known = plans.boundary({}, kSecond, kFirst);
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->reduced, std::set<UnitId>{1});
  EXPECT_EQ(known->opened, std::set<UnitId>{1});
  EXPECT_EQ(plans.boundary({.training = false}, kSecond, kFirst), nullptr) << "of another kind";
  // Another cycle that does the same between these two runs.
  plans.add({},
            {forward(0), forward(1), forward(2), backward(2), backward(1, {open(1)}),
             backward(0, {reduce(1)}), end_of({1})},
            kNeeds, {});
  EXPECT_NE(plans.boundary({}, kSecond, kFirst), nullptr);
  const Boundary* nothing = plans.boundary({}, {2, Phase::backward}, kSecond);
  ASSERT_NE(nothing, nullptr);
  EXPECT_TRUE(nothing->reduced.empty());
}

TEST(KnownPlans, BoundariesThatDifferTellNothing) {
  KnownPlans plans;
  plans.add({}, {forward(1), forward(0), backward(1, {open(1)}), backward(0, {reduce(1)}), end_of({1})},
            kNeeds, {});
  // Unit 1 is used once more, and its gradient comes later.
  plans.add({},
            {forward(1), forward(0), forward(1), backward(1), backward(0), backward(1, {open(1)}),
             backward(2, {reduce(1)}), end_of({1})},
            kNeeds, {});
  EXPECT_EQ(plans.boundary({}, kSecond, kFirst), nullptr);
  EXPECT_NE(plans.boundary({}, kSecond, {2, Phase::backward}), nullptr);
}

}  // namespace
}  // namespace fsdp::detail
