#include "plan/schedule.h"

#include <algorithm>

#include "plan/arena.h"

namespace fsdp::detail {

CyclePlan make_cycle_plan(const std::vector<Access>& trace, std::vector<Reduction> reductions,
                          const std::vector<UnitNeed>& units, const std::vector<int64_t>& buffer_bytes,
                          const PlanOptions& options, const CyclePlan* like) {
  CyclePlan plan;
  plan.slots = make_plan(trace, units, options, like != nullptr ? &like->slots : nullptr);
  plan.reductions = std::move(reductions);
  std::vector<Lifetime> lifetimes;
  for (const Reduction& one : plan.reductions)
    lifetimes.push_back({one.opened, one.at + 1, buffer_bytes[static_cast<size_t>(one.unit)]});
  const Packing packing = pack(lifetimes);
  for (size_t i = 0; i < plan.reductions.size(); ++i) plan.reductions[i].offset = packing.offsets[i];
  plan.buffer_bytes = packing.bytes;
  return plan;
}

void Schedule::begin(std::vector<const CyclePlan*> plans) {
  fitting_ = std::move(plans);
  plan_ = fitting_.empty() ? nullptr : fitting_.front();
  went_over_ = false;
  made_.assign(plan_ != nullptr ? plan_->reductions.size() : 0, false);
  task_ = 0;
  trace_.clear();
  reductions_.clear();
  widened_.clear();
  spoilt_ = false;
}

const Access* Schedule::expected() const {
  return plan_ == nullptr || trace_.size() >= plan_->slots.runs.size()
             ? nullptr
             : &plan_->slots.runs[trace_.size()].access;
}

const PlannedRun* Schedule::advance(Access access) {
  const size_t position = trace_.size();
  trace_.push_back(access);
  if (trace_.size() > kLongest) spoil();
  went_over_ = false;
  if (plan_ == nullptr) return nullptr;
  std::erase_if(fitting_, [&](const CyclePlan* plan) {
    return position >= plan->slots.runs.size() || plan->slots.runs[position].access != access;
  });
  if (fitting_.empty()) {
    leave_plan();
    return nullptr;
  }
  if (std::find(fitting_.begin(), fitting_.end(), plan_) == fitting_.end()) go_over(fitting_.front());
  return &plan_->slots.runs[position];
}

// What the other plan has reduced by now counts as done: the same accesses came before. A gradient that is
// not where the new plan has it is noticed when the backward ends.
void Schedule::go_over(const CyclePlan* plan) {
  plan_ = plan;
  went_over_ = true;
  made_.assign(plan->reductions.size(), false);
  for (size_t i = 0; i < made_.size(); ++i) {
    const Reduction& one = plan->reductions[i];
    made_[i] = one.task < task_ || (one.task == task_ && !one.task_end && one.at < boundary());
  }
}

// What was made is part of what the new plan is made from.
void Schedule::leave_plan() {
  if (plan_ == nullptr) return;
  for (size_t i = 0; i < made_.size(); ++i) {
    if (!made_[i]) continue;
    reductions_.push_back(plan_->reductions[i]);
    const auto wider = widened_.find(&plan_->reductions[i]);
    if (wider != widened_.end()) reductions_.back().used = wider->second;
  }
  plan_ = nullptr;
}

std::vector<const Reduction*> Schedule::due(bool task_end) {
  std::vector<const Reduction*> found;
  for (size_t i = 0; i < made_.size(); ++i) {
    const Reduction& one = plan_->reductions[i];
    if (made_[i] || one.at != boundary() || one.task != task_ || one.task_end != task_end) continue;
    made_[i] = true;
    found.push_back(&one);
  }
  return found;
}

const Reduction* Schedule::opening(UnitId unit) const {
  if (plan_ == nullptr) return nullptr;
  for (size_t i = 0; i < made_.size(); ++i) {
    const Reduction& one = plan_->reductions[i];
    if (!made_[i] && one.unit == unit && one.task == task_ && one.opened <= boundary() &&
        boundary() <= one.at)
      return &one;
  }
  return nullptr;
}

}  // namespace fsdp::detail
