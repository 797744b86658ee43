// The plans of a model's cycles, ordered by how likely each comes next.
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

// The conditions a set of plans is for: training or not, the trained parameters, and what is not reduced.
struct CycleKind {
  bool training = true;
  std::vector<bool> trained = {};
  std::vector<bool> held = {};  // units that no_sync() keeps on their ranks; empty: none
  bool held_in_row = false;     // sums are not reduced over the rows of the mesh
  std::vector<bool> kept = {};  // units that stay gathered after the cycle; empty: none

  auto operator<=>(const CycleKind&) const = default;
};

// The gradient actions of cycles at the boundary between two runs.
struct Boundary {
  std::set<UnitId> opened;   // units whose first gradient arrived in the run before
  std::set<UnitId> reduced;  // units whose reduction started here
};

// Note [Cycles without a plan]
// Programs whose cycles rarely repeat (sequences of any length, blocks dropped at random) make more plans
// than are worth keeping, so plans followed longest ago are dropped. The actions at a boundary are remembered
// longer than the plan: which units were reduced when the model went on from one run to the next, as long as
// every cycle with these two runs in a row did the same. When a cycle without a plan comes to such a
// boundary, ranks repeat these actions and ask each other nothing. This guesses when to reduce, never what:
// every rank makes the same guess; a gradient that arrives after its unit's reduction, or whose boundary was
// not reached, is reduced when the backward ends; and in every cycle without a plan ranks agree on that at
// its end.
//
// Depends only on the model's own actions, so all ranks expect the same.
class KnownPlans {
 public:
  // Plans of a kind: first the one that came after the previous cycle's last time, then the others, most
  // recently followed first.
  std::vector<const Plan*> likely(const CycleKind& kind);
  // A cycle followed `plan` to its end.
  void followed(const CycleKind& kind, const Plan* plan);
  // Adds a plan made from `recorded`. It replaces the plan of the same cycle. If there are too many plans,
  // those followed longest ago are dropped.
  void add(const CycleKind& kind, const std::vector<Moment>& recorded, const std::vector<UnitNeed>& needs,
           const PlanOptions& options);
  void clear() { kinds_.clear(); }

  // The highest need of all plans.
  int64_t arena_bytes() const;
  int64_t buffer_bytes() const;
  // Number of plans for training.
  size_t trainings() const;
  // Units that any plan of a kind reads in backward.
  std::set<UnitId> read_in_backward(const CycleKind& kind) const;
  // The actions of all cycles of a kind that went on from run `from` to `to`. Null: there was no such cycle,
  // or they reduced different units. See Note [Cycles without a plan].
  const Boundary* boundary(const CycleKind& kind, Access from, Access to) const;

 private:
  static constexpr size_t kMostMoments = 100'000;  // schedule points in all plans of one kind: about 40 MB

  struct Plans {
    std::vector<std::unique_ptr<Plan>> all;         // most recently followed at the end
    std::map<const Plan*, const Plan*> after = {};  // the plan that came after each, last time
    const Plan* last = nullptr;
    // Common to all cycles that ever had a plan; no value: they differ.
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
