// Where a model is in its cycle: which moment of a plan, or what it did so far.
//
// Note [Cycles]
// A cycle is what repeats: all forwards up to and with the backwards that follow, evaluations between them
// included, or one forward without gradients. The first cycle is recorded, with what on_demand.h made of its
// accesses and of the ranks' answers; from it comes the plan of the next ones. Gradients are reduced when
// the model goes on to another unit or at the end of a backward: what happens there depends on the sequence
// of accesses alone, which is the same on all ranks, never on when a gradient arrived. A cycle that leaves
// its plan goes on on demand and is planned anew.
//
// Programs may have several cycles in turn: a judge that sees real and made samples and then made ones alone,
// blocks that are dropped at random. So several plans are kept. A cycle begins with the one that followed the
// last cycle's before, and goes over to another where the model does what that one has; slots lie where both
// expect them, and what one has gathered ahead and the other does not expect is released
// (Engine::change_over).
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

class Schedule {
 public:
  // Starts a cycle that may be any of `plans`, the first of them most likely; none: on demand.
  void begin(std::vector<const Plan*> plans);

  // The run that the plan has next; null: no plan, or it has another moment there.
  const Access* expected() const;
  // The model goes on to `access`, or a backward has ended. Returns what is planned for it, or null on
  // demand.
  const Moment* advance(Access access);
  const Moment* end_backward();
  // It has just gone over to another plan; what memory should hold before what is planned for this moment.
  bool went_over() const { return went_over_; }
  std::vector<Place> expected_residents() const { return residents(*plan_, moments_ - 1); }
  std::vector<Place> expected_buffers() const { return open_buffers(*plan_, moments_ - 1); }
  // Goes on on demand.
  void leave_plan();
  // As above, in the end of a backward: what the plan has after the ranks' agreement is not done.
  void leave_plan_at_agreement();
  // What was recorded is no cycle to repeat.
  void spoil() {
    spoilt_ = true;
    plan_ = nullptr;
    unsettled_.clear();
  }

  const Plan* plan() const { return plan_; }
  bool spoilt() const { return spoilt_; }
  bool following() const { return plan_ != nullptr; }
  bool at_end() const { return plan_ != nullptr && moments_ == plan_->moments.size(); }
  // The plan has the unit gathered once more; also where there is none to say so.
  bool gathers_again(UnitId unit) const;
  // The plan has more to do with the unit before this backward is over, but for its release; also where there
  // is none to say so.
  bool needs_again(UnitId unit) const;
  const Access* current() const { return last_run_ ? &*last_run_ : nullptr; }

  // On demand: what was done now. An open is noted at the moment before, after which the first gradient came,
  // unless the unit is open already.
  void record(const Instruction& step);
  // A reduction of the plan had gradients of more parameters.
  void widen(const Instruction& planned, std::vector<bool> used) { widened_[&planned] = std::move(used); }

  // Units with a reduction that does not settle in what is recorded, and whether it was summed over the rows.
  // Where a cycle went over to another plan, some of them have settled already: that is not in either plan.
  const std::map<UnitId, bool>& unsettled() const { return unsettled_; }

  // Whether the cycle just run should be planned anew, and from what: after leave_plan().
  bool worth_planning() const { return !spoilt_ && last_run_ && !at_end(); }
  const std::vector<Moment>& recorded() const { return recorded_; }

 private:
  const Moment* advance_to(const std::optional<Access>& run);
  void note(const Instruction& step);

  // Moments of a cycle that is worth a plan: making one takes time that grows with the square. Evaluations
  // with gradients on, and no backward, go on for ever.
  static constexpr size_t kLongest = 20000;

  const Plan* plan_ = nullptr;
  std::vector<const Plan*> fitting_;  // plans that begin with what was done so far; plan_ among them
  bool went_over_ = false;
  size_t moments_ = 0;  // so far
  std::optional<Access> last_run_;
  std::map<const Instruction*, std::vector<bool>> widened_;
  std::vector<Moment> recorded_;  // on demand
  std::set<UnitId> open_;         // units with an open and no reduction yet, in what is recorded
  std::map<UnitId, bool> unsettled_;
  bool spoilt_ = false;
};

}  // namespace fsdp::detail
