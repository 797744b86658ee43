#include "runtime/schedule.h"

#include "plan/arena.h"

namespace fsdp::detail {

CyclePlan make_cycle_plan(const std::vector<Access>& trace, std::vector<Reduction> reductions,
                          const std::vector<UnitNeed>& units, const std::vector<int64_t>& buffer_bytes,
                          const PlanOptions& options) {
  CyclePlan plan;
  plan.slots = make_plan(trace, units, options);
  plan.reductions = std::move(reductions);
  std::vector<Lifetime> lifetimes;
  for (const Reduction& one : plan.reductions)
    lifetimes.push_back({one.opened, one.at + 1, buffer_bytes[static_cast<size_t>(one.unit)]});
  const Packing packing = pack(lifetimes);
  for (size_t i = 0; i < plan.reductions.size(); ++i) plan.reductions[i].offset = packing.offsets[i];
  plan.buffer_bytes = packing.bytes;
  return plan;
}

void Schedule::begin(const CyclePlan* plan) {
  plan_ = plan;
  trace_.clear();
  reductions_.clear();
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
  if (plan_ == nullptr) return nullptr;
  const auto& runs = plan_->slots.runs;
  if (position < runs.size() && runs[position].access == access) return &runs[position];
  leave_plan(boundary() - 1);
  return nullptr;
}

void Schedule::leave_plan(int32_t done) {
  if (plan_ == nullptr) return;
  for (const Reduction& one : plan_->reductions)
    if (one.at <= done) reductions_.push_back(one);
  plan_ = nullptr;
}

std::vector<const Reduction*> Schedule::due(bool task_end) const {
  std::vector<const Reduction*> found;
  for (const Reduction& one : plan_->reductions)
    if (one.at == boundary() && one.task_end == task_end) found.push_back(&one);
  return found;
}

const Reduction* Schedule::opening(UnitId unit) const {
  if (plan_ == nullptr) return nullptr;
  for (const Reduction& one : plan_->reductions)
    if (one.unit == unit && one.opened <= boundary() && boundary() <= one.at) return &one;
  return nullptr;
}

}  // namespace fsdp::detail
