// Schedule: a model's position in its cycle, by schedule point of a plan or by what was recorded so far.
//
// Note [Cycles]
// A cycle is what repeats: all forwards up to and with the backwards that follow, evaluations between them
// included, or one forward without gradients. The first cycle is recorded, with the instructions that
// on_demand.h made from its accesses and the ranks' answers; the plan of the next ones comes from this
// record. Gradients are reduced when the model goes on to another unit or at the end of a backward. The
// actions there depend on the sequence of accesses alone, which is the same on all ranks, never on the time a
// gradient arrived. A cycle that leaves its plan continues on demand and is planned anew.
//
// A program may alternate between cycles: a discriminator that sees real and generated samples and then
// generated ones alone, or blocks that are dropped at random. So several plans are kept. A cycle begins with
// the plan that followed the previous cycle's last time, and changes to another plan where the model does
// what that one has. Slots lie where both expect them; units that one plan gathered ahead and the other does
// not expect are released (Engine::change_over).
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

class Schedule {
 public:
  // Starts a cycle that may be any of `plans`, the most likely first; none: on demand.
  void begin(std::vector<const Plan*> plans);

  // The run that the plan has next; null: no plan, or another kind of schedule point comes next.
  const Access* expected() const;
  // The model goes on to `access`, or a backward has ended. Returns the planned instructions, or null on
  // demand.
  const Moment* advance(Access access);
  const Moment* end_backward();
  // True if it has just changed to another plan; then the next two say what memory should hold at this point.
  bool went_over() const { return went_over_; }
  std::vector<Place> expected_residents() const { return residents(*plan_, moments_ - 1); }
  std::vector<Place> expected_buffers() const { return open_buffers(*plan_, moments_ - 1); }
  // Continues on demand.
  void leave_plan();
  // As above, at the end of a backward: the plan's steps after the ranks' agreement are not done.
  void leave_plan_at_agreement();
  // The recorded cycle must not be repeated.
  void spoil() {
    spoilt_ = true;
    plan_ = nullptr;
    unsettled_.clear();
  }

  const Plan* plan() const { return plan_; }
  bool spoilt() const { return spoilt_; }
  bool following() const { return plan_ != nullptr; }
  bool at_end() const { return plan_ != nullptr && moments_ == plan_->moments.size(); }
  // True if the plan gathers the unit once more, or if there is no plan.
  bool gathers_again(UnitId unit) const;
  // True if the plan has more to do with the unit in this backward than its release, or if there is no plan
  // to say so.
  bool needs_again(UnitId unit) const;
  const Access* current() const { return last_run_ ? &*last_run_ : nullptr; }

  // On demand: records an action. An open is noted at the previous schedule point, after which the first
  // gradient arrived, unless the unit is open already.
  void record(const Instruction& step);
  // A planned reduction had gradients of more parameters.
  void widen(const Instruction& planned, std::vector<bool> used) { widened_[&planned] = std::move(used); }

  // Units with a recorded reduction that does not settle, and whether it was summed over the rows. After a
  // change to another plan some of them have settled already: that is in neither plan.
  const std::map<UnitId, bool>& unsettled() const { return unsettled_; }

  // True if the cycle just run should be planned anew, from recorded(). Call leave_plan() before.
  bool worth_planning() const { return !spoilt_ && last_run_ && !at_end(); }
  const std::vector<Moment>& recorded() const { return recorded_; }

 private:
  const Moment* advance_to(const std::optional<Access>& run);
  void note(const Instruction& step);

  // Limit of schedule points for a plan: making one takes time that grows with the square. Evaluations with
  // gradients on and no backward never end a cycle.
  static constexpr size_t kLongest = 20000;

  const Plan* plan_ = nullptr;
  std::vector<const Plan*> fitting_;  // plans that begin as this cycle did so far; plan_ among them
  bool went_over_ = false;
  size_t moments_ = 0;  // schedule points so far
  std::optional<Access> last_run_;
  std::map<const Instruction*, std::vector<bool>> widened_;
  std::vector<Moment> recorded_;  // on demand
  std::set<UnitId> open_;         // units with an open and no reduction yet, in what is recorded
  std::map<UnitId, bool> unsettled_;
  bool spoilt_ = false;
};

}  // namespace fsdp::detail
