// The dtypes in which a unit is kept, gathered and reduced, and its bytes: decided before any tensor exists.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/flat_layout.h"

namespace fsdp::detail {

// The options and strategy of one unit.
struct UnitChoice {
  int ranks = 1;   // number of ranks that share it; 1: every rank has it whole
  int pieces = 0;  // number of equal pieces of all shards together, whatever `ranks` is; 0: one per rank
  // Types of floating-point parameters; empty: as the one before, and `master` as in the module.
  std::optional<ElementType> master = std::nullopt, compute = std::nullopt, reduce = std::nullopt;
  bool keep_low_precision_grads = false;
  bool stays_gathered = false;  // from forward to backward
  int reshard_group = 0;        // number of ranks that keep it from forward to backward; 0: no group
  bool may_share = false;       // ranks can read each other's shards in place
  bool average = true;          // average gradients over the ranks; false: sum
  double divide_by = 0;         // divisor of that sum; 0: none
  bool on_host = false;         // the shard is in host memory, and computed with on a device
  bool gradient_on_host = false;
};

// A region, with the types in which it is kept and communicated.
struct RegionSpec {
  RegionLayout layout;
  int ranks = 1;
  ElementType master = {};     // type of the shard
  ElementType compute = {};    // type of the gathered region
  ElementType reduce = {};     // type of gradients in the reduction
  ElementType gradient = {};   // type of the gradient shard
  bool shared_shards = false;  // ranks' shards lie side by side: Note [Shared shards]
  bool on_host = false;        // the shard is in host memory: Note [Offload]
  bool gradient_on_host = false;

  int64_t total() const { return layout.total(ranks); }
  // True if the shard holds the whole region in the type it is computed with.
  bool in_place() const { return total() == 0 || (ranks == 1 && compute == master && !on_host); }
  int64_t shard_bytes() const { return layout.shard_numel * master.bytes; }
  int64_t slot_bytes() const { return in_place() || shared_shards ? 0 : total() * compute.bytes; }
  int64_t buffer_bytes() const { return layout.trainable ? total() * reduce.bytes : 0; }
  int64_t gradient_bytes() const { return layout.trainable ? layout.shard_numel * gradient.bytes : 0; }
};

struct UnitSpec {
  UnitLayout layout;
  std::vector<RegionSpec> regions;  // one per region of the layout
  bool stays_gathered = false;
  int reshard_group = 0;
  bool average = true;
  double divide_by = 0;  // 0: none

  int64_t shard_bytes() const { return sum(&RegionSpec::shard_bytes); }
  int64_t slot_bytes() const { return sum(&RegionSpec::slot_bytes); }
  int64_t buffer_bytes() const { return sum(&RegionSpec::buffer_bytes); }
  int64_t gradient_bytes() const { return sum(&RegionSpec::gradient_bytes); }

 private:
  int64_t sum(int64_t (RegionSpec::*bytes)() const) const {
    int64_t total = 0;
    for (const RegionSpec& region : regions) total += (region.*bytes)();
    return total;
  }
};

UnitSpec make_unit_spec(const UnitDecl& unit, const UnitChoice& choice);

}  // namespace fsdp::detail
