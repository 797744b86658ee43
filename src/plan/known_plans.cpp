#include "plan/known_plans.h"

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"

namespace fsdp::detail {

std::vector<const Plan*> KnownPlans::likely(const CycleKind& kind) {
  const Plans& plans = kinds_[kind];
  std::vector<const Plan*> order;
  for (auto it = plans.all.rbegin(); it != plans.all.rend(); ++it) order.push_back(it->get());
  const auto after = plans.after.find(plans.last);
  const auto first =
      std::find(order.begin(), order.end(), after != plans.after.end() ? after->second : plans.last);
  if (first != order.end()) std::rotate(order.begin(), first, first + 1);
  return order;
}

void KnownPlans::followed(const CycleKind& kind, const Plan* plan) {
  Plans& plans = kinds_[kind];
  plans.after[plans.last] = plan;
  plans.last = plan;
  const auto found =
      std::find_if(plans.all.begin(), plans.all.end(), [&](const auto& one) { return one.get() == plan; });
  if (found != plans.all.end()) std::rotate(found, found + 1, plans.all.end());
}

void KnownPlans::add(const CycleKind& kind, const std::vector<Moment>& recorded,
                     const std::vector<UnitNeed>& needs, const PlanOptions& options) {
  Plans& plans = kinds_[kind];
  const Plan* like = nullptr;  // the plan that has the most schedule points in common
  const Plan* same = nullptr;
  size_t longest = 0;
  for (const auto& plan : plans.all) {
    const size_t common = common_moments(plan->moments, recorded);
    if (common == recorded.size() && common == plan->moments.size()) same = plan.get();
    if (common <= longest) continue;
    longest = common;
    like = plan.get();
  }
  auto made = std::make_unique<Plan>(make_plan(recorded, needs, options, like));
  if (const std::string wrong = check_plan(*made, needs, options); !wrong.empty()) {
    FSDP_ASSERT(wrong.empty());
    log_warn("a plan is not followed, which is an error of fsdp and costs time only: " + wrong);
    return;
  }
  if (same != nullptr) plans.remove(same);
  while (!plans.all.empty() && plans.moments() + made->moments.size() > kMostMoments)
    plans.remove(plans.all.front().get());
  plans.note_boundaries(*made);
  plans.all.push_back(std::move(made));
  followed(kind, plans.all.back().get());
}

void KnownPlans::Plans::remove(const Plan* plan) {
  std::erase_if(after, [&](const auto& pair) { return pair.first == plan || pair.second == plan; });
  if (last == plan) last = nullptr;
  std::erase_if(all, [&](const auto& one) { return one.get() == plan; });
}

void KnownPlans::Plans::note_boundaries(const Plan& plan) {
  const auto units_with = [](const Moment& moment, Action action) {
    std::set<UnitId> units;
    for (const Instruction& step : moment.steps)
      if (step.action == action) units.insert(step.unit);
    return units;
  };
  for (size_t m = 1; m < plan.moments.size(); ++m) {
    const Moment &from = plan.moments[m - 1], &to = plan.moments[m];
    if (!from.run || !to.run || to.run->phase != Phase::backward) continue;
    Boundary found{.opened = units_with(from, Action::open), .reduced = units_with(to, Action::reduce)};
    const auto [known, is_new] = boundaries.try_emplace({*from.run, *to.run}, found);
    if (is_new || !known->second) continue;
    if (known->second->reduced != found.reduced)
      known->second.reset();
    else
      known->second->opened.merge(found.opened);
  }
}

size_t KnownPlans::Plans::moments() const {
  size_t count = 0;
  for (const auto& plan : all) count += plan->moments.size();
  return count;
}

template <class Value>
int64_t KnownPlans::most(Value value) const {
  int64_t bytes = 0;
  for (const auto& [kind, plans] : kinds_)
    for (const auto& plan : plans.all) bytes = std::max(bytes, value(*plan));
  return bytes;
}

int64_t KnownPlans::arena_bytes() const {
  return most([](const Plan& plan) { return plan.arena_bytes; });
}

int64_t KnownPlans::buffer_bytes() const {
  return most([](const Plan& plan) { return plan.buffer_bytes; });
}

size_t KnownPlans::trainings() const {
  size_t count = 0;
  for (const auto& [kind, plans] : kinds_) count += kind.training ? plans.all.size() : 0;
  return count;
}

std::set<UnitId> KnownPlans::read_in_backward(const CycleKind& kind) const {
  std::set<UnitId> units;
  const auto found = kinds_.find(kind);
  if (found == kinds_.end()) return units;
  for (const auto& plan : found->second.all)
    for (const Moment& moment : plan->moments)
      if (moment.run && moment.run->phase == Phase::backward) units.insert(moment.run->unit);
  return units;
}

const Boundary* KnownPlans::boundary(const CycleKind& kind, Access from, Access to) const {
  const auto plans = kinds_.find(kind);
  if (plans == kinds_.end()) return nullptr;
  const auto known = plans->second.boundaries.find({from, to});
  return known != plans->second.boundaries.end() && known->second ? &*known->second : nullptr;
}

}  // namespace fsdp::detail
