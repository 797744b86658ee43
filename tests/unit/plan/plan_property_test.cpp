#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "plan/plan.h"
#include "plan_words.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::IsEmpty;

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
  c.options.backward = static_cast<Prefetch>(below(3));
  if (c.options.backward != Prefetch::pre) c.options.backward_ahead = 0;
  if (below(2) == 0) {
    c.options.forward_lists = random_lists(random, c.units.size());
    c.options.backward_lists = random_lists(random, c.units.size());
  }
  const bool keeps = below(2) == 0;
  for (UnitNeed& unit : c.units)
    unit = {.slot_bytes = kBlock * below(6), .stays_gathered = keeps && below(3) == 0};
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
  return c.units[static_cast<size_t>(unit)].stays_gathered && first <= here && here < last;
}

// Whether a list of a run at or before p names the unit, which no run since has used, and a later one uses.
bool listed(const Case& c, const std::vector<Access>& runs, UnitId unit, size_t p) {
  const auto uses = [&](const Access& run) { return run.unit == unit; };
  if (std::none_of(runs.begin() + static_cast<std::ptrdiff_t>(p), runs.end(), uses)) return false;
  for (size_t r = p + 1; r-- > 0;) {
    if (runs[r].unit == unit) return false;
    const std::vector<UnitId>* list = c.options.list(runs[r]);
    if (list != nullptr && std::find(list->begin(), list->end(), unit) != list->end()) return true;
  }
  return false;
}

// The units that Note [From trace to plan] wants alive during run p, by trying every later run.
std::set<UnitId> wanted(const Case& c, const std::vector<Access>& runs, size_t p) {
  const auto sees = [&](size_t from, size_t to) {
    const bool forward = runs[from].phase == Phase::forward;
    const int ahead = forward ? c.options.forward_ahead : c.options.backward_ahead;
    const int far = c.options.list(runs[from]) != nullptr ? 0 : ahead;
    const int most = c.options.max_slots > 0 ? std::min(far, c.options.max_slots - 1) : far;
    return to - from <= static_cast<size_t>(most);
  };
  std::set<UnitId> units;
  for (size_t q = p; q < runs.size(); ++q) {
    bool all_see = true;
    for (size_t from = p; from <= q; ++from) all_see = all_see && sees(from, q);
    if (all_see) units.insert(runs[q].unit);
  }
  for (UnitId unit = 0; unit < static_cast<UnitId>(c.units.size()); ++unit)
    if (held(c, runs, unit, p) || listed(c, runs, unit, p)) units.insert(unit);
  return units;
}

// Releases, the own gather, the use, gathers in the order of the list or of later runs; no unit goes and
// comes back at once.
void expect_order(const Case& c, const Plan& plan, size_t p) {
  const UnitId own = plan.moments[p].run->unit;
  const std::vector<UnitId>* list = c.options.list(*plan.moments[p].run);
  const auto next_use = [&](UnitId unit) {
    if (list != nullptr)
      return static_cast<size_t>(std::find(list->begin(), list->end(), unit) - list->begin());
    size_t q = p;
    while (plan.moments.at(q).run->unit != unit) ++q;
    return q;
  };
  std::vector<size_t> keys;
  std::set<UnitId> moved;
  for (const Instruction& step : plan.moments[p].steps) {
    if (step.action == Action::release) keys.push_back(0);
    if (step.action == Action::gather) keys.push_back(step.unit == own ? 1 : 3 + next_use(step.unit));
    if (step.action == Action::use) keys.push_back(2);
    if (step.action != Action::use) {
      EXPECT_TRUE(moved.insert(step.unit).second) << words(plan.moments[p].steps);
    }
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end())) << words(plan.moments[p].steps);
  EXPECT_EQ(std::count(keys.begin(), keys.end(), size_t{2}), 1) << words(plan.moments[p].steps);
}

void expect_run(const Case& c, const std::vector<Access>& runs, size_t p, const Memory& memory) {
  EXPECT_TRUE(memory.ready(runs[p].unit)) << "run " << p;
  EXPECT_EQ(memory.alive(), wanted(c, runs, p)) << "run " << p;
  int counted = 0;
  for (const UnitId unit : memory.alive())
    counted += held(c, runs, unit, p) || listed(c, runs, unit, p) ? 0 : 1;
  if (c.options.max_slots > 0) {
    EXPECT_LE(counted, c.options.max_slots) << "run " << p;
  }
}

void expect_sound(const Case& c, const std::function<void(const Memory&)>& at_end = {}) {
  const std::vector<Moment> recorded = moments_of(c.trace);
  std::vector<Access> runs;
  for (const Moment& moment : recorded) runs.push_back(*moment.run);
  const Plan plan = make_plan(recorded, c.units, c.options);
  EXPECT_EQ(check_plan(plan, c.units, c.options), "");
  ASSERT_EQ(plan.moments.size(), runs.size());
  Memory memory(c, plan.arena_bytes);
  for (size_t p = 0; p < runs.size() && !::testing::Test::HasFailure(); ++p) {
    ASSERT_EQ(*plan.moments[p].run, runs[p]);
    memory.follow(plan.moments[p].steps);
    expect_order(c, plan, p);
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
        const bool once = unit == last || c.units[static_cast<size_t>(unit)].stays_gathered;
        EXPECT_GE(memory.gathers(unit), 1) << "unit " << unit;
        EXPECT_LE(memory.gathers(unit), once ? 1 : 2) << "unit " << unit;
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
