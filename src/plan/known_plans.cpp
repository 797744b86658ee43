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
}

void KnownPlans::add(const CycleKind& kind, const std::vector<Moment>& recorded,
                     const std::vector<UnitNeed>& needs, const PlanOptions& options) {
  Plans& plans = kinds_[kind];
  const Plan* like = nullptr;  // the one that goes the same way longest
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
  if (same != nullptr)
    plans.remove(same);
  else if (plans.all.size() == kMost)
    plans.remove(plans.all.front().get());
  plans.all.push_back(std::move(made));
  followed(kind, plans.all.back().get());
}

void KnownPlans::Plans::remove(const Plan* plan) {
  std::erase_if(after, [&](const auto& pair) { return pair.first == plan || pair.second == plan; });
  if (last == plan) last = nullptr;
  std::erase_if(all, [&](const auto& one) { return one.get() == plan; });
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

bool KnownPlans::has(const CycleKind& kind, Access access) const {
  const auto found = kinds_.find(kind);
  if (found == kinds_.end()) return false;
  const auto& all = found->second.all;
  return std::any_of(all.begin(), all.end(), [&](const auto& plan) {
    return std::any_of(plan->moments.begin(), plan->moments.end(),
                       [&](const Moment& moment) { return moment.run == access; });
  });
}

}  // namespace fsdp::detail
