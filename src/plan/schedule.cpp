#include "plan/schedule.h"

#include <algorithm>

namespace fsdp::detail {

void Schedule::begin(std::vector<const Plan*> plans) {
  fitting_ = std::move(plans);
  plan_ = fitting_.empty() ? nullptr : fitting_.front();
  went_over_ = false;
  moments_ = 0;
  last_run_.reset();
  widened_.clear();
  recorded_.clear();
  open_.clear();
  unsettled_.clear();
  spoilt_ = false;
}

const Access* Schedule::expected() const {
  if (plan_ == nullptr || moments_ >= plan_->moments.size()) return nullptr;
  const auto& run = plan_->moments[moments_].run;
  return run ? &*run : nullptr;
}

const Moment* Schedule::advance(Access access) {
  last_run_ = access;
  return advance_to(access);
}

const Moment* Schedule::end_backward() { return advance_to(std::nullopt); }

// After a change to another plan, reductions of the one before count as done: the same schedule points came
// before. A gradient that is not where the new plan has it is noticed when the backward ends.
const Moment* Schedule::advance_to(const std::optional<Access>& run) {
  const size_t now = moments_;
  went_over_ = false;
  if (plan_ != nullptr) {
    std::erase_if(fitting_, [&](const Plan* plan) {
      return now >= plan->moments.size() || plan->moments[now].run != run;
    });
    if (fitting_.empty()) leave_plan();
  }
  ++moments_;
  if (moments_ > kLongest) spoil();
  if (plan_ == nullptr) {
    if (!spoilt_) recorded_.push_back({.run = run, .steps = {}});
    return nullptr;
  }
  if (std::find(fitting_.begin(), fitting_.end(), plan_) == fitting_.end()) {
    plan_ = fitting_.front();
    went_over_ = true;
  }
  return &plan_->moments[now];
}

namespace {

template <class Which>
bool any_step(const Plan& plan, size_t first, size_t end, UnitId unit, Which which) {
  const auto at = [&](size_t i) { return plan.moments.begin() + static_cast<std::ptrdiff_t>(i); };
  return std::any_of(at(first), at(end), [&](const Moment& moment) {
    return std::any_of(moment.steps.begin(), moment.steps.end(),
                       [&](const Instruction& step) { return step.unit == unit && which(step.action); });
  });
}

bool reads(Action action) { return action == Action::gather || action == Action::use; }

}  // namespace

bool Schedule::gathers_again(UnitId unit) const {
  return plan_ == nullptr || any_step(*plan_, std::max<size_t>(moments_, 1) - 1, plan_->moments.size(), unit,
                                      [](Action action) { return action == Action::gather; });
}

bool Schedule::needs_again(UnitId unit) const {
  if (plan_ == nullptr) return true;
  const size_t now = std::max<size_t>(moments_, 1) - 1;
  size_t end = now;  // past the end of this backward
  while (end < plan_->moments.size() && plan_->moments[end].run) ++end;
  end = std::min(end + 1, plan_->moments.size());
  if (any_step(*plan_, now, end, unit, reads)) return true;
  return any_step(*plan_, std::min(moments_, end), end, unit,
                  [](Action action) { return action != Action::release && action != Action::agree; });
}

void Schedule::leave_plan() {
  if (plan_ == nullptr) return;
  const auto begin = plan_->moments.begin();
  recorded_.assign(begin, begin + static_cast<std::ptrdiff_t>(moments_));
  for (size_t m = 0; m < moments_; ++m) {
    std::vector<Instruction>& steps = recorded_[m].steps;
    const std::vector<Instruction>& planned = plan_->moments[m].steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto wider = widened_.find(&planned[i]);
      if (wider != widened_.end()) steps[i].used = wider->second;
      note(steps[i]);
    }
  }
  plan_ = nullptr;
}

void Schedule::note(const Instruction& step) {
  switch (step.action) {
    case Action::open:
      open_.insert(step.unit);
      break;
    case Action::reduce:
      open_.erase(step.unit);
      unsettled_[step.unit] = false;
      break;
    case Action::reduce_across:
      unsettled_[step.unit] = true;
      break;
    case Action::settle:
      unsettled_.erase(step.unit);
      break;
    default:
      break;
  }
}

void Schedule::leave_plan_at_agreement() {
  leave_plan();
  std::vector<Instruction>& last = recorded_.back().steps;
  const auto agree = std::find_if(last.begin(), last.end(),
                                  [](const Instruction& step) { return step.action == Action::agree; });
  last.erase(agree, last.end());
  open_.clear();
  unsettled_.clear();
  for (const Moment& moment : recorded_)
    for (const Instruction& step : moment.steps) note(step);
}

void Schedule::record(const Instruction& step) {
  if (recorded_.empty() || spoilt_) return;
  if (step.action == Action::open) {
    if (open_.contains(step.unit)) return;
    const size_t before = recorded_.size() - (recorded_.size() > 1 ? 2 : 1);
    recorded_[before].steps.push_back(step);
  } else {
    recorded_.back().steps.push_back(step);
  }
  note(step);
}

}  // namespace fsdp::detail
