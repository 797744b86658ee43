#include "plan/plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBlock = 256;

// "0 1 | 1 0": units used in forward, then in backward.
std::vector<Access> trace_of(const std::string& text) {
  std::vector<Access> trace;
  Phase phase = Phase::forward;
  for (const char c : text) {
    if (c == '|') phase = Phase::backward;
    if (c >= '0' && c <= '9') trace.push_back({c - '0', phase});
  }
  return trace;
}

std::string words(const std::vector<Instruction>& list) {
  std::string text;
  for (const Instruction& step : list) {
    const std::string at = std::to_string(step.unit) + "@" + std::to_string(step.offset / kBlock);
    const char* action = step.action == Action::gather ? "gather "
                         : step.action == Action::use  ? "use "
                                                       : "release ";
    text += (text.empty() ? "" : ", ") + (action + at);
  }
  return text;
}

// One line per run and one for the end; offsets count blocks of 256 bytes.
std::vector<std::string> words(const Plan& plan) {
  std::vector<std::string> lines;
  for (const PlannedRun& run : plan.runs) {
    const char* phase = run.access.phase == Phase::forward ? "f" : "b";
    lines.push_back(phase + std::to_string(run.access.unit) + ": " + words(run.before));
  }
  lines.push_back("end: " + words(plan.after));
  return lines;
}

std::vector<UnitNeed> units_of(const std::vector<int64_t>& blocks, const std::set<UnitId>& kept = {}) {
  std::vector<UnitNeed> units;
  for (const int64_t n : blocks) {
    const bool keep = kept.contains(static_cast<UnitId>(units.size()));
    units.push_back({.slot_bytes = n * kBlock, .keep = keep});
  }
  return units;
}

TEST(PlanCollapse, NeighboursOfOneUnitInOnePhaseAreOneRun) {
  EXPECT_EQ(collapse(trace_of("0 0 1 1 1 0 | 0 0 1")), trace_of("0 1 0 | 0 1"));
  EXPECT_THAT(collapse({}), IsEmpty());
}

TEST(Plan, ThreeBlocksForwardAndBackward) {
  const Plan plan = make_plan(trace_of("0 0 1 2 2 | 2 1 1 0"), units_of({1, 1, 1}), {});
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
  const Plan plan = make_plan(trace_of("0 1 2 0 | 0 2 1 0"), units_of({4, 1, 1}), {});
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
  EXPECT_THAT(words(make_plan(trace_of("0 0 | 0 0"), units_of({1}), {})),
              ElementsAre("f0: gather 0@0, use 0@0", "b0: use 0@0", "end: release 0@0"));
}

TEST(Plan, NothingUsedIsNothingPlanned) {
  const Plan plan = make_plan({}, units_of({1, 1}), {});
  EXPECT_THAT(words(plan), ElementsAre("end: "));
  EXPECT_EQ(plan.arena_bytes, 0);
}

TEST(Plan, ForwardOnlyReleasesTheLastUnitAtTheEnd) {
  EXPECT_THAT(words(make_plan(trace_of("0 1 2"), units_of({1, 1, 1}), {})),
              ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",   //
                          "f1: release 0@0, use 1@1, gather 2@0",  //
                          "f2: release 1@1, use 2@0",              //
                          "end: release 2@0"));
}

TEST(Plan, KeptUnitsAreGatheredOnce) {
  const Plan plan = make_plan(trace_of("0 1 2 | 2 1 0"), units_of({1, 1, 1}, {0, 1, 2}), {});
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
  EXPECT_THAT(words(make_plan(trace_of("0 1 | 1"), units_of({1, 1}, {0}), {})),
              ElementsAre("f0: gather 0@0, use 0@0, gather 1@1",  //
                          "f1: release 0@0, use 1@1",             //
                          "b1: use 1@1",                          //
                          "end: release 1@1"));
}

TEST(Plan, OneSlotGathersOnlyWhenTheUnitBeforeIsGone) {
  const Plan plan = make_plan(trace_of("0 1 | 1 0"), units_of({1, 1}),
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
    const Plan plan = make_plan(trace_of("0 1 2 3 4 5"), units_of({1, 1, 1, 1, 1, 1}),
                                {.forward_ahead = 3, .backward_ahead = 3, .max_slots = slots});
    EXPECT_EQ(words(plan).front(), first_of[slots]);
    EXPECT_EQ(plan.arena_bytes, (slots == 0 ? 4 : slots) * kBlock);
  }
}

TEST(Plan, EachPhaseLooksAheadByItsOwnNumber) {
  const Plan plan = make_plan(trace_of("0 1 2 3 | 3 4 5 6"), units_of({1, 1, 1, 1, 1, 1, 1}),
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
  const Plan plan = make_plan(trace_of("0 1 2 | 2 1 0"), units, {});
  EXPECT_EQ(plan.arena_bytes, kBlock);
  EXPECT_EQ(check_plan(plan, units, {}), "");
}

// A step of a program that nobody would write: it goes back and forth between units and phases.
struct Case {
  std::vector<Access> trace;
  std::vector<UnitNeed> units;
  PlanOptions options;
};

Case random_case(std::mt19937& random) {
  const auto below = [&random](unsigned n) { return static_cast<int>(random() % n); };
  Case c{.trace = {},
         .units = std::vector<UnitNeed>(1 + random() % 8),
         .options = {.forward_ahead = below(4), .backward_ahead = below(4), .max_slots = below(5)}};
  const bool keeps = below(2) == 0;
  for (UnitNeed& unit : c.units) unit = {.slot_bytes = kBlock * below(6), .keep = keeps && below(3) == 0};
  Phase phase = Phase::forward;
  for (int n = below(40); n > 0; --n) {
    if (below(8) == 0) phase = phase == Phase::forward ? Phase::backward : Phase::forward;
    c.trace.push_back({below(static_cast<unsigned>(c.units.size())), phase});
  }
  return c;
}

// Forward through all units, backward the other way.
Case random_step(std::mt19937& random) {
  Case c = random_case(random);
  c.trace.clear();
  const auto count = static_cast<UnitId>(c.units.size());
  for (UnitId u = 0; u < count; ++u) c.trace.push_back({u, Phase::forward});
  for (UnitId u = count; u > 0; --u) c.trace.push_back({u - 1, Phase::backward});
  return c;
}

// Which unit owns each block of the arena, as the executor would have it.
class Memory {
 public:
  Memory(const Case& c, int64_t arena_bytes)
      : case_(c), owners_(static_cast<size_t>(arena_bytes / kBlock), kNobody) {}

  void follow(const std::vector<Instruction>& list) {
    for (const Instruction& step : list) {
      if (step.action == Action::gather) gather(step);
      if (step.action == Action::use) use(step);
      if (step.action == Action::release) release(step);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  std::set<UnitId> alive() const {
    std::set<UnitId> units;
    for (const auto& [unit, uses] : uses_) units.insert(unit);
    return units;
  }
  bool ready(UnitId unit) const { return uses_.contains(unit) && uses_.at(unit) > 0; }
  int gathers(UnitId unit) const { return gathers_.contains(unit) ? gathers_.at(unit) : 0; }

 private:
  static constexpr UnitId kNobody = -1;

  void gather(const Instruction& step) {
    ASSERT_TRUE(uses_.emplace(step.unit, 0).second) << "unit " << step.unit << " gathered twice";
    ++gathers_[step.unit];
    swap_owner(step, kNobody, step.unit);
  }

  void use(const Instruction& step) {
    ASSERT_TRUE(uses_.contains(step.unit)) << "unit " << step.unit << " is not there";
    ++uses_[step.unit];
    swap_owner(step, step.unit, step.unit);
  }

  void release(const Instruction& step) {
    ASSERT_TRUE(ready(step.unit)) << "unit " << step.unit << " was never used";
    uses_.erase(step.unit);
    swap_owner(step, step.unit, kNobody);
  }

  void swap_owner(const Instruction& step, UnitId from, UnitId to) {
    ASSERT_EQ(step.offset % kBlock, 0);
    const int64_t bytes = case_.units[static_cast<size_t>(step.unit)].slot_bytes;
    for (int64_t at = step.offset; at < step.offset + bytes; at += kBlock) {
      const auto block = static_cast<size_t>(at / kBlock);
      ASSERT_LT(block, owners_.size()) << "outside of the arena";
      ASSERT_EQ(owners_[block], from) << "block " << block;
      owners_[block] = to;
    }
  }

  const Case& case_;
  std::vector<UnitId> owners_;
  std::map<UnitId, int> uses_;  // of units that are gathered, since then
  std::map<UnitId, int> gathers_;
};

// Whether `keep` holds the unit during run p.
bool held(const Case& c, const std::vector<Access>& runs, UnitId unit, size_t p) {
  const auto first = std::find(runs.begin(), runs.end(), Access{unit, Phase::forward});
  const auto last = std::find(runs.rbegin(), runs.rend(), Access{unit, Phase::backward}).base();
  const auto here = runs.begin() + static_cast<std::ptrdiff_t>(p);
  return c.units[static_cast<size_t>(unit)].keep && first <= here && here < last;
}

// The units that Note [From trace to plan] wants alive during run p, by trying every later run.
std::set<UnitId> wanted(const Case& c, const std::vector<Access>& runs, size_t p) {
  const auto sees = [&](size_t from, size_t to) {
    const bool forward = runs[from].phase == Phase::forward;
    const int ahead = forward ? c.options.forward_ahead : c.options.backward_ahead;
    const int most = c.options.max_slots > 0 ? std::min(ahead, c.options.max_slots - 1) : ahead;
    return to - from <= static_cast<size_t>(most);
  };
  std::set<UnitId> units;
  for (size_t q = p; q < runs.size(); ++q) {
    bool all_see = true;
    for (size_t from = p; from <= q; ++from) all_see = all_see && sees(from, q);
    if (all_see) units.insert(runs[q].unit);
  }
  for (UnitId unit = 0; unit < static_cast<UnitId>(c.units.size()); ++unit)
    if (held(c, runs, unit, p)) units.insert(unit);
  return units;
}

// Releases, the own gather, the use, gathers in the order of later runs; no unit goes and comes back at once.
void expect_order(const Plan& plan, size_t p) {
  const UnitId own = plan.runs[p].access.unit;
  const auto next_use = [&](UnitId unit) {
    size_t q = p;
    while (plan.runs.at(q).access.unit != unit) ++q;
    return q;
  };
  std::vector<size_t> keys;
  std::set<UnitId> moved;
  for (const Instruction& step : plan.runs[p].before) {
    if (step.action == Action::release) keys.push_back(0);
    if (step.action == Action::gather) keys.push_back(step.unit == own ? 1 : 3 + next_use(step.unit));
    if (step.action == Action::use) keys.push_back(2);
    if (step.action != Action::use) {
      EXPECT_TRUE(moved.insert(step.unit).second) << words(plan.runs[p].before);
    }
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end())) << words(plan.runs[p].before);
  EXPECT_EQ(std::count(keys.begin(), keys.end(), size_t{2}), 1) << words(plan.runs[p].before);
}

void expect_run(const Case& c, const std::vector<Access>& runs, size_t p, const Memory& memory) {
  EXPECT_TRUE(memory.ready(runs[p].unit)) << "run " << p;
  EXPECT_EQ(memory.alive(), wanted(c, runs, p)) << "run " << p;
  int counted = 0;
  for (const UnitId unit : memory.alive()) counted += held(c, runs, unit, p) ? 0 : 1;
  if (c.options.max_slots > 0) {
    EXPECT_LE(counted, c.options.max_slots) << "run " << p;
  }
}

void expect_sound(const Case& c, const std::function<void(const Memory&)>& at_end = {}) {
  const std::vector<Access> runs = collapse(c.trace);
  const Plan plan = make_plan(c.trace, c.units, c.options);
  EXPECT_EQ(check_plan(plan, c.units, c.options), "");
  ASSERT_EQ(plan.runs.size(), runs.size());
  Memory memory(c, plan.arena_bytes);
  for (size_t p = 0; p < runs.size() && !::testing::Test::HasFailure(); ++p) {
    ASSERT_EQ(plan.runs[p].access, runs[p]);
    memory.follow(plan.runs[p].before);
    expect_order(plan, p);
    expect_run(c, runs, p, memory);
  }
  memory.follow(plan.after);
  EXPECT_THAT(memory.alive(), IsEmpty()) << "at the end";
  if (at_end) at_end(memory);
}

TEST(PlanProperty, AnyTraceGivesASoundPlan) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 20000); round > 0 && !HasFailure(); --round)
    expect_sound(random_case(random));
}

TEST(PlanProperty, AStepGathersAUnitTwiceAtMostAndAKeptOneOnce) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 20000); round > 0 && !HasFailure(); --round) {
    const Case c = random_step(random);
    const auto last = static_cast<UnitId>(c.units.size()) - 1;
    expect_sound(c, [&](const Memory& memory) {
      for (UnitId unit = 0; unit <= last; ++unit) {
        const bool once = unit == last || c.units[static_cast<size_t>(unit)].keep;
        EXPECT_GE(memory.gathers(unit), 1) << "unit " << unit;
        EXPECT_LE(memory.gathers(unit), once ? 1 : 2) << "unit " << unit;
      }
    });
  }
}

// Plans that are broken in one place each.
class PlanCheck : public ::testing::Test {
 protected:
  std::string check() const { return check_plan(plan_, units_, options_); }
  Instruction& at(size_t run, size_t i) { return plan_.runs[run].before[i]; }
  void drop(size_t run, size_t i) {
    auto& list = plan_.runs[run].before;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<UnitNeed> units_ = units_of({1, 1, 1});
  PlanOptions options_;
  Plan plan_ = make_plan(trace_of("0 1 2 | 2 1 0"), units_, options_);
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
  plan_.runs[0].before.push_back(at(0, 2));
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
  plan_.runs[0].before.push_back({Action::release, 0, 0});
  EXPECT_THAT(check(), HasSubstr("before run 0: its unit is released before it runs"));
}

TEST_F(PlanCheck, SeesAGatherForNothing) {
  plan_.runs[0].before.push_back({Action::release, 1, kBlock});
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

}  // namespace
}  // namespace fsdp::testing
