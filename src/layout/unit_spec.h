// How a unit is kept, gathered and reduced, and the memory that takes: decided before any tensor exists.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/flat_layout.h"

namespace fsdp::detail {

// What options and strategy say of a unit.
struct UnitChoice {
  int ranks = 1;   // that hold it between them; 1: it is whole on every rank
  int pieces = 0;  // shards are made of so many equal pieces in all, whatever `ranks` is; 0: one each
  // Of floating-point parameters; empty: as the one before, `master` as the module has them.
  std::optional<ElementType> master = std::nullopt, compute = std::nullopt, reduce = std::nullopt;
  bool keep_low_precision_grads = false;
  bool stays_gathered = false;  // from forward to backward
  int reshard_group = 0;        // ranks that save it between them from forward to backward; 0: none
  bool may_share = false;       // ranks can read each other's shards where they lie
  bool average = true;          // gradients over the ranks; false: their sum
  double divide_by = 0;         // of that sum; 0: nothing
  bool on_host = false;         // the shard is in host memory, and computed with elsewhere
  bool gradient_on_host = false;
};

// A region in the types it is kept and moved in.
struct RegionSpec {
  RegionLayout layout;
  int ranks = 1;
  ElementType master = {};     // of the shard
  ElementType compute = {};    // of what is gathered
  ElementType reduce = {};     // of gradients on the way
  ElementType gradient = {};   // of the gradient shard
  bool shared_shards = false;  // ranks' shards lie side by side: Note [Shared shards]
  bool on_host = false;        // the shard is in host memory: Note [Offload]
  bool gradient_on_host = false;

  int64_t total() const { return layout.total(ranks); }
  // The shard is all there is, in the type it is computed with.
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
  double divide_by = 0;  // 0: nothing

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
