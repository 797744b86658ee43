// Which step of the plan a model has reached, and what to plan from when it went another way.
//
// Note [Cycles]
// A cycle is what repeats: all forwards up to and with the backwards that follow, or one forward without
// gradients. The first cycle is recorded and units are gathered on demand; from it comes the plan of the next
// ones. Gradients are reduced at boundaries, the moments when the model goes on to another unit, or at the
// end of a backward: what happens there depends on the sequence of accesses alone, which is the same on all
// ranks, never on when a gradient arrived. A cycle that leaves its plan goes on on demand and is planned
// anew.
//
// Programs may have several cycles in turn: a judge that sees real and made samples and then made ones alone,
// blocks that are dropped at random. So several plans are kept. A cycle begins with the one that followed the
// last cycle's before, and goes over to another where the model does what that one has; slots lie where both
// expect them, and what one has gathered ahead and the other does not expect is released (Engine::use).
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// A unit's gradients, from the first that arrives to their reduction.
struct Reduction {
  UnitId unit = 0;
  int32_t opened = 0;           // boundaries passed when the first gradient of any rank arrived
  int32_t at = 0;               // boundaries passed when it was reduced
  bool task_end = false;        // reduced at the end of a backward, not at a boundary
  std::vector<bool> used = {};  // which parameters some rank used
  int32_t task = 0;             // backwards ended before in the cycle
  int64_t offset = 0;           // of its buffer in the gradient arena
};

struct CyclePlan {
  Plan slots;
  std::vector<Reduction> reductions;
  int64_t buffer_bytes = 0;
};

// `buffer_bytes`: per unit. A buffer lives until the boundary after its reduction.
// `like`: see make_plan().
CyclePlan make_cycle_plan(const std::vector<Access>& trace, std::vector<Reduction> reductions,
                          const std::vector<UnitNeed>& units, const std::vector<int64_t>& buffer_bytes,
                          const PlanOptions& options, const CyclePlan* like = nullptr);

class Schedule {
 public:
  // Starts a cycle that may be any of `plans`, the first of them most likely; none: on demand.
  void begin(std::vector<const CyclePlan*> plans);

  // What the plan has next; null: no plan, or it is at its end.
  const Access* expected() const;
  // The model goes on to `access`. Returns what is planned for it, or null on demand.
  const PlannedRun* advance(Access access);
  // advance() has gone over to another plan; what memory should hold now, see residents().
  bool went_over() const { return went_over_; }
  std::vector<std::pair<UnitId, int64_t>> expected_residents() const {
    return residents(plan_->slots, trace_.size() - 1);
  }
  // Goes on on demand.
  void leave_plan();
  // A backward has ended.
  void end_task() { ++task_; }
  // What was recorded is no cycle to repeat.
  void spoil() { spoilt_ = true, plan_ = nullptr; }

  const CyclePlan* plan() const { return plan_; }
  bool spoilt() const { return spoilt_; }
  bool following() const { return plan_ != nullptr; }
  bool at_end() const { return plan_ != nullptr && trace_.size() == plan_->slots.runs.size(); }
  int32_t boundary() const { return static_cast<int32_t>(trace_.size()); }
  const Access* current() const { return trace_.empty() ? nullptr : &trace_.back(); }

  // Following: the planned reductions of this moment, and the one whose buffer a unit opens now or null.
  std::vector<const Reduction*> due(bool task_end);
  const Reduction* opening(UnitId unit) const;
  // The reduction of the plan had gradients of more parameters.
  void widen(const Reduction& planned, std::vector<bool> used) { widened_[&planned] = std::move(used); }
  void record(Reduction reduction) {
    reduction.task = task_;
    reductions_.push_back(std::move(reduction));
  }

  // Whether the cycle just run should be planned anew, and from what.
  bool worth_planning() const { return !spoilt_ && !trace_.empty() && !at_end(); }
  const std::vector<Access>& trace() const { return trace_; }
  const std::vector<Reduction>& reductions() const { return reductions_; }

 private:
  void go_over(const CyclePlan* plan);

  // Accesses of a cycle that is worth a plan: making one takes time that grows with the square. Evaluations
  // with gradients on, and no backward, go on for ever.
  static constexpr size_t kLongest = 20000;

  const CyclePlan* plan_ = nullptr;
  std::vector<const CyclePlan*> fitting_;  // plans that begin with what was done so far; plan_ among them
  bool went_over_ = false;
  std::vector<bool> made_;  // which of the planned reductions
  std::map<const Reduction*, std::vector<bool>> widened_;
  int32_t task_ = 0;
  std::vector<Access> trace_;
  std::vector<Reduction> reductions_;
  bool spoilt_ = false;
};

}  // namespace fsdp::detail
