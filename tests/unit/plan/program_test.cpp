// Whole cycles without tensors: ranks whose gradients come at different times, planned from what they agreed
// on.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "plan/known_plans.h"
#include "plan/on_demand.h"
#include "plan/schedule.h"
#include "plan_words.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What the ranks of a training have at a time. Every unit has one parameter.
class Ranks {
 public:
  Ranks(int ranks, size_t units, bool across)
      : ranks_(ranks), across_(across), arrived_(units, std::vector<bool>(static_cast<size_t>(ranks))) {}

  void arrives(UnitId unit, int rank) {
    arrived_[static_cast<size_t>(unit)][static_cast<size_t>(rank)] = true;
  }
  void arrives_everywhere(UnitId unit) {
    arrived_[static_cast<size_t>(unit)].assign(arrived_[0].size(), true);
  }

  std::vector<GradientCounts> counts() const {
    std::vector<GradientCounts> all;
    for (const auto& unit : arrived_) {
      const auto n = std::count(unit.begin(), unit.end(), true);
      all.push_back({.ranks_open = n, .ranks_complete = n, .trained = {true}});
    }
    return all;
  }
  std::vector<std::vector<bool>> left() const {
    std::vector<std::vector<bool>> all;
    for (const auto& unit : arrived_)
      all.push_back({std::find(unit.begin(), unit.end(), true) != unit.end()});
    return all;
  }
  const std::vector<InFlight>& in_flight() const { return in_flight_; }
  int size() const { return ranks_; }

  void obey(const std::vector<Instruction>& steps, Schedule& schedule) {
    for (const Instruction& step : steps) {
      schedule.record(step);
      const auto mine = [&](const InFlight& one) { return one.unit == step.unit; };
      const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), mine);
      if (step.action == Action::reduce) {
        ASSERT_EQ(found, in_flight_.end()) << "unit " << step.unit << " is summed twice at once";
        in_flight_.push_back({.unit = step.unit, .across = across_});
        arrived_[static_cast<size_t>(step.unit)].assign(arrived_[0].size(), false);
      }
      if (step.action == Action::reduce_across) found->across = false;
      if (step.action == Action::settle) in_flight_.erase(found);
    }
  }

 private:
  int ranks_;
  bool across_;
  std::vector<std::vector<bool>> arrived_;  // by unit and rank
  std::vector<InFlight> in_flight_;
};

// One cycle on demand.
class Recorder {
 public:
  Recorder(int ranks, size_t units, bool across = false) : ranks(ranks, units, across) { schedule.begin({}); }

  void run(Access access) {
    if (schedule.current() != nullptr && *schedule.current() == access) return;
    schedule.advance(access);
    if (access.phase == Phase::forward) return;
    ranks.obey(go_on(ranks.in_flight()), schedule);
    ranks.obey(reduce_complete(ranks.counts(), ranks.size(), ranks.in_flight()), schedule);
  }
  void end_backward() {
    schedule.end_backward();
    ranks.obey(reduce_rest(ranks.left(), ranks.in_flight()), schedule);
    ranks.obey(detail::end_backward(ranks.in_flight()), schedule);
  }
  // Forward through all units, backward the other way; gradients come while their unit is used.
  void step(UnitId units) {
    for (UnitId u = 0; u < units; ++u) run({u, Phase::forward});
    for (UnitId u = units; u-- > 0;) {
      run({u, Phase::backward});
      ranks.arrives_everywhere(u);
    }
    end_backward();
  }

  Schedule schedule;
  Ranks ranks;
};

std::vector<UnitNeed> trained_units(size_t count) {
  return std::vector<UnitNeed>(count,
                               {.slot_bytes = kBlock, .stays_gathered = false, .buffer_bytes = kBlock});
}

// The three orders of gather(next), release(this) and reduce(this).
TEST(PlanProgram, PrefetchPoliciesAreOrders) {
  Recorder cycle(2, 3);
  cycle.step(3);
  const auto backward = [&](Prefetch policy) {
    const PlanOptions options{.backward = policy};
    const Plan plan = make_plan(cycle.schedule.recorded(), trained_units(3), options);
    EXPECT_EQ(check_plan(plan, trained_units(3), options), "");
    return words(std::vector<Moment>(plan.moments.begin() + 3, plan.moments.end()));
  };
  EXPECT_THAT(backward(Prefetch::pre),
              ElementsAre("b2: open 2@0, use 2@0, gather 1@1",                           //
                          "b1: reduce 2@0, open 1@1, release 2@0, use 1@1, gather 0@0",  //
                          "b0: settle 2, reduce 1@1, open 0@0, release 1@1, use 0@0",    //
                          "over: reduce 0@0, agree, settle 1, settle 0"));
  EXPECT_THAT(backward(Prefetch::post),
              ElementsAre("b2: open 2@0, use 2@0",                                                 //
                          "b1: release 2@0, gather 1@0, reduce 2@0, open 1@1, use 1@0",            //
                          "b0: release 1@0, gather 0@0, settle 2, reduce 1@1, open 0@0, use 0@0",  //
                          "over: reduce 0@0, agree, settle 1, settle 0"));
  EXPECT_THAT(backward(Prefetch::none),
              ElementsAre("b2: open 2@0, use 2@0",                                                 //
                          "b1: reduce 2@0, open 1@1, settle 2, release 2@0, gather 1@0, use 1@0",  //
                          "b0: reduce 1@1, open 0@0, settle 1, release 1@0, gather 0@0, use 0@0",  //
                          "over: reduce 0@0, agree, settle 0"));
}

TEST(PlanProgram, AUnitIsReducedWhileTheNextComputes) {
  Recorder cycle(2, 3);
  cycle.step(3);
  const Plan plan = make_plan(cycle.schedule.recorded(), trained_units(3), {});
  EXPECT_THAT(words(plan), ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",                         //
                                       "f1: release 0@0, use 1@1, gather 2@0",                        //
                                       "f2: release 1@1, use 2@0",                                    //
                                       "b2: open 2@0, use 2@0, gather 1@1",                           //
                                       "b1: reduce 2@0, open 1@1, release 2@0, use 1@1, gather 0@0",  //
                                       "b0: settle 2, reduce 1@1, open 0@0, release 1@1, use 0@0",    //
                                       "over: reduce 0@0, agree, settle 1, settle 0",                 //
                                       "end: release 0@0"));
  EXPECT_EQ(plan.buffer_bytes, 2 * kBlock);
  EXPECT_EQ(check_plan(plan, trained_units(3), {}), "");
}

// The buffer is free when the row's sum is there; the sum goes on without it.
TEST(PlanProgram, OverRowsASumTakesOneUnitMore) {
  Recorder cycle(4, 4, /*across=*/true);
  cycle.step(4);
  const Plan plan = make_plan(cycle.schedule.recorded(), trained_units(4), {});
  EXPECT_THAT(words(plan), Contains(HasSubstr("b1: across 3, reduce 2@1, open 1@0,")));
  EXPECT_THAT(words(plan), Contains(HasSubstr("b0: settle 3, across 2, reduce 1@0, open 0@1,")));
  EXPECT_THAT(words(plan),
              Contains("over: reduce 0@1, agree, across 1, across 0, settle 2, settle 1, settle 0"));
  EXPECT_EQ(plan.buffer_bytes, 2 * kBlock);
}

// The gradient of one rank opens the buffer on all of them, at the same moment.
TEST(PlanProgram, WhatOneRankUsesIsOpenOnAll) {
  Recorder cycle(3, 2);
  cycle.run({0, Phase::forward});
  cycle.run({1, Phase::forward});
  cycle.run({1, Phase::backward});
  cycle.ranks.arrives(1, 2);
  cycle.run({0, Phase::backward});
  cycle.end_backward();
  const Plan plan = make_plan(cycle.schedule.recorded(), trained_units(2), {});
  EXPECT_THAT(words(plan), Contains(HasSubstr("b1: open 1@0,")));
  EXPECT_THAT(words(plan), Contains("over: reduce 1@0, agree, settle 1"));
}

TEST(PlanProgram, GradientsWithoutPlannedMemoryAreReducedWithoutAPlace) {
  Recorder cycle(2, 1);
  cycle.step(1);
  std::vector<UnitNeed> units = trained_units(1);
  units[0].buffer_bytes = 0;
  const Plan plan = make_plan(cycle.schedule.recorded(), units, {});
  EXPECT_THAT(words(plan), Contains("over: reduce 0, agree, settle 0"));
  EXPECT_EQ(plan.buffer_bytes, 0);
  EXPECT_EQ(check_plan(plan, units, {}), "");
}

// A cycle that does what the plan says until a gradient is missing: what was done by then is planned again.
TEST(PlanProgram, ACycleThatLeavesItsPlanAtTheAgreementIsPlannedAnew) {
  Recorder first(2, 2);
  first.step(2);
  const Plan plan = make_plan(first.schedule.recorded(), trained_units(2), {});
  Recorder cycle(2, 2);
  cycle.schedule.begin({&plan});
  for (const Moment& moment : plan.moments)
    ASSERT_NE(moment.run ? cycle.schedule.advance(*moment.run) : cycle.schedule.end_backward(), nullptr);
  ASSERT_TRUE(cycle.schedule.at_end());
  cycle.schedule.leave_plan_at_agreement();
  EXPECT_THAT(words(cycle.schedule.recorded()), Contains("over: reduce 0@1"));
  cycle.schedule.record({.action = Action::open, .unit = 1});
  cycle.schedule.record({.action = Action::settle, .unit = 1});
  cycle.schedule.record({.action = Action::reduce, .unit = 1});
  for (const Instruction& step : end_backward({{.unit = 0}, {.unit = 1}})) cycle.schedule.record(step);
  const Plan again = make_plan(cycle.schedule.recorded(), trained_units(2), {});
  EXPECT_THAT(words(again), Contains("over: reduce 0@1, settle 1, reduce 1@2, agree, settle 0, settle 1"));
  EXPECT_EQ(check_plan(again, trained_units(2), {}), "");
}

TEST(PlanProgram, AtTheEndOfABackwardACycleGoesOverToThePlanThatEndsThere) {
  Recorder once(2, 1), twice(2, 1);
  once.step(1);
  twice.run({0, Phase::forward});
  for (int i = 0; i < 2; ++i) {
    twice.run({0, Phase::backward});
    twice.ranks.arrives_everywhere(0);
    twice.run({0, Phase::forward});
  }
  twice.run({0, Phase::backward});
  twice.end_backward();
  const Plan longer = make_plan(twice.schedule.recorded(), trained_units(1), {});
  const Plan shorter = make_plan(once.schedule.recorded(), trained_units(1), {}, &longer);
  Schedule schedule;
  schedule.begin({&longer, &shorter});
  ASSERT_NE(schedule.advance({0, Phase::forward}), nullptr);
  ASSERT_NE(schedule.advance({0, Phase::backward}), nullptr);
  EXPECT_FALSE(schedule.went_over());
  ASSERT_NE(schedule.end_backward(), nullptr);
  EXPECT_TRUE(schedule.went_over());
  EXPECT_TRUE(schedule.at_end());
  EXPECT_THAT(schedule.expected_residents(), ElementsAre(Place(0, 0)));
  EXPECT_THAT(schedule.expected_buffers(), ElementsAre(Place(0, 0)));

  // Ranks find that they used more than planned: what the plan has in flight must settle in the record, also
  // where it settled when the cycle went over.
  schedule.leave_plan_at_agreement();
  std::vector<InFlight> in_flight;
  for (const auto& [unit, crossed] : schedule.unsettled()) in_flight.push_back({.unit = unit});
  EXPECT_EQ(in_flight.size(), 1U);
  for (const Instruction& step : end_backward(in_flight)) schedule.record(step);
  EXPECT_EQ(check_plan(make_plan(schedule.recorded(), trained_units(1), {}), trained_units(1), {}), "");
}

// Units in any order, several backwards, gradients of any rank at any time, some never.
Recorder random_cycle(std::mt19937& random, UnitId units) {
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int ranks = 1 + below(3);
  Recorder cycle(ranks, static_cast<size_t>(units), below(2) == 0);
  for (int n = below(10); n >= 0; --n) cycle.run({below(units), Phase::forward});
  for (int backwards = 1 + below(3); backwards > 0; --backwards) {
    for (int n = below(12); n >= 0; --n) {
      cycle.run({below(units), Phase::backward});
      for (int arrivals = below(4); arrivals > 0; --arrivals) {
        if (below(2) == 0)
          cycle.ranks.arrives_everywhere(below(units));
        else
          cycle.ranks.arrives(below(units), below(ranks));
      }
    }
    cycle.end_backward();
  }
  return cycle;
}

size_t count(const std::vector<Moment>& moments, Action action) {
  size_t n = 0;
  for (const Moment& moment : moments)
    n += static_cast<size_t>(std::count_if(moment.steps.begin(), moment.steps.end(),
                                           [&](const Instruction& step) { return step.action == action; }));
  return n;
}

TEST(PlanProperty, AnyCycleGivesASoundProgram) {
  std::mt19937 random(seed());
  for (int round = repeats(300, 20000); round > 0 && !HasFailure(); --round) {
    const auto units = static_cast<UnitId>(1 + random() % 5);
    std::vector<UnitNeed> needs;
    for (UnitId u = 0; u < units; ++u)
      needs.push_back({.slot_bytes = kBlock * static_cast<int64_t>(random() % 4),
                       .stays_gathered = random() % 4 == 0,
                       .buffer_bytes = kBlock * static_cast<int64_t>(random() % 4)});
    const Recorder cycle = random_cycle(random, units);
    const std::vector<Moment>& recorded = cycle.schedule.recorded();
    const PlanOptions options{.max_slots = static_cast<int>(random() % 4),
                              .backward = static_cast<Prefetch>(random() % 3),
                              .forward_lists = random_lists(random, needs.size()),
                              .backward_lists = random_lists(random, needs.size())};
    const Plan plan = make_plan(recorded, needs, options);
    EXPECT_EQ(check_plan(plan, needs, options), "") << ::testing::PrintToString(words(plan));
    EXPECT_EQ(common_moments(plan.moments, recorded), recorded.size());
    for (const Action kept : {Action::reduce, Action::reduce_across, Action::settle, Action::agree})
      EXPECT_EQ(count(plan.moments, kept), count(recorded, kept));
  }
}

TEST(OnDemand, WhatWasUsedLongestAgoMakesRoom) {
  const Slots slots{.residents = {{.unit = 4, .offset = 0, .bytes = kBlock, .counts = true, .idle = false},
                                  {.unit = 1, .offset = kBlock, .bytes = kBlock},
                                  {.unit = 2, .offset = 2 * kBlock, .bytes = kBlock}},
                    .arena_bytes = 3 * kBlock,
                    .max_slots = 3};
  EXPECT_EQ(words(make_readable(7, kBlock, slots)), "release 1@1, gather 7@1, use 7@1");
  EXPECT_EQ(words(make_readable(7, 2 * kBlock, slots)), "release 1@1, release 2@2, gather 7@1, use 7@1");
  EXPECT_EQ(words(make_readable(7, 3 * kBlock, slots)), "release 1@1, release 2@2, gather 7, use 7");
}

TEST(OnDemand, SlotsLimitWhatIsGatheredAtOnce) {
  Slots slots{.residents = {{.unit = 1, .offset = 0, .bytes = kBlock},
                            {.unit = 2, .offset = kBlock, .bytes = kBlock}},
              .arena_bytes = 9 * kBlock,
              .max_slots = 2};
  EXPECT_EQ(words(make_readable(3, kBlock, slots)), "release 1@0, gather 3@0, use 3@0");
  slots.residents[0].counts = slots.residents[0].idle = false;  // kept for backward
  EXPECT_EQ(words(make_readable(3, kBlock, slots)), "gather 3@2, use 3@2");
}

}  // namespace
}  // namespace fsdp::testing
