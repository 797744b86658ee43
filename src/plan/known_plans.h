// The plans of a model's cycles, and which of them is likely to come next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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

// Depends on what the model did alone, so that all ranks expect the same.
class KnownPlans {
 public:
  // Those of a kind. First the one that came after the last cycle before, then the others, newest first.
  std::vector<const Plan*> likely(const CycleKind& kind);
  // A cycle went as `plan` says, to its end.
  void followed(const CycleKind& kind, const Plan* plan);
  // A plan for what was recorded. It replaces one of the same cycle, or the oldest where there are many.
  void add(const CycleKind& kind, const std::vector<Moment>& recorded, const std::vector<UnitNeed>& needs,
           const PlanOptions& options);
  void clear() { kinds_.clear(); }

  // What all plans need at most.
  int64_t arena_bytes() const;
  int64_t buffer_bytes() const;
  // How many there are for training.
  size_t trainings() const;
  // Whether some plan of a kind has `access`.
  bool has(const CycleKind& kind, Access access) const;

 private:
  static constexpr size_t kMost = 16;  // of one kind

  struct Plans {
    std::vector<std::unique_ptr<Plan>> all;         // in the order in which they were made
    std::map<const Plan*, const Plan*> after = {};  // what came after each, last time
    const Plan* last = nullptr;

    void remove(const Plan* plan);
  };
  template <class Value>
  int64_t most(Value value) const;

  std::map<CycleKind, Plans> kinds_;
};

}  // namespace fsdp::detail
