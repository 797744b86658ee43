// The plans of a model's cycles, and which of them is likely to come next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// What a set of plans is for: training or not, which parameters are trained, and what is not reduced.
struct CycleKind {
  bool training = true;
  std::vector<bool> trained = {};
  std::vector<bool> held = {};  // units that no_sync() keeps on their ranks; empty: none
  bool held_in_row = false;     // sums are not reduced over the rows of the mesh
  bool kept_gathered = false;   // units are not released when it is over

  auto operator<=>(const CycleKind&) const = default;
};

// What cycles did with gradients where the model went on from one run to the next.
struct Boundary {
  std::set<UnitId> opened;   // units whose first gradient came in the run before
  std::set<UnitId> reduced;  // units whose reduction started here
};

// Note [Cycles without a plan]
// Programs whose cycles rarely repeat (sequences of any length, blocks dropped at random) make more plans
// than are worth keeping: those that were followed longest ago go. What a cycle did at a boundary is
// remembered longer than its plan: which units were reduced when the model went on from one run to the next,
// as long as every cycle with these two runs in a row did the same. Where a cycle without a plan comes to
// such a boundary, ranks do it again and ask each other nothing. This is a guess of when to reduce, never of
// what: every rank makes the same one, a gradient that comes after its unit's reduction is reduced when the
// backward ends, and so is one whose boundary was not reached; ranks agree on that in every cycle without a
// plan.
//
// Depends on what the model did alone, so that all ranks expect the same.
class KnownPlans {
 public:
  // Those of a kind. First the one that came after the last cycle before, then the others, last followed
  // first.
  std::vector<const Plan*> likely(const CycleKind& kind);
  // A cycle went as `plan` says, to its end.
  void followed(const CycleKind& kind, const Plan* plan);
  // A plan for what was recorded. It replaces one of the same cycle. Where there are many, those that were
  // followed longest ago go.
  void add(const CycleKind& kind, const std::vector<Moment>& recorded, const std::vector<UnitNeed>& needs,
           const PlanOptions& options);
  void clear() { kinds_.clear(); }

  // What all plans need at most.
  int64_t arena_bytes() const;
  int64_t buffer_bytes() const;
  // How many there are for training.
  size_t trainings() const;
  // Units that some plan of a kind reads in backward.
  std::set<UnitId> read_in_backward(const CycleKind& kind) const;
  // What all cycles of a kind did that went on from run `from` to `to`. Null: there was none, or they reduced
  // different units. See Note [Cycles without a plan].
  const Boundary* boundary(const CycleKind& kind, Access from, Access to) const;

 private:
  static constexpr size_t kMostMoments = 100'000;  // in all plans of one kind: some 40 MB

  struct Plans {
    std::vector<std::unique_ptr<Plan>> all;         // last followed last
    std::map<const Plan*, const Plan*> after = {};  // what came after each, last time
    const Plan* last = nullptr;
    // Of all cycles that ever had a plan; none: they differ.
    std::map<std::pair<Access, Access>, std::optional<Boundary>> boundaries = {};

    void remove(const Plan* plan);
    void note_boundaries(const Plan& plan);
    size_t moments() const;
  };
  template <class Value>
  int64_t most(Value value) const;

  std::map<CycleKind, Plans> kinds_;
};

}  // namespace fsdp::detail
