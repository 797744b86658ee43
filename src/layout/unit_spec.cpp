#include "layout/unit_spec.h"

#include <algorithm>

namespace fsdp::detail {

namespace {

// The smallest element size in which the unit is ever kept; 0: not given.
int64_t narrowest_bytes(const UnitChoice& choice) {
  int64_t bytes = 0;
  for (const auto& type : {choice.compute, choice.reduce, choice.master})
    if (type) bytes = std::min<int64_t>(bytes == 0 ? 8 : bytes, type->bytes);
  return bytes;
}

UnitLayout cut(const UnitDecl& unit, const UnitChoice& choice) {
  if (choice.pieces == 0) return make_layout(unit, choice.ranks, narrowest_bytes(choice));
  UnitLayout layout = make_layout(unit, choice.pieces, narrowest_bytes(choice));
  layout.ranks = choice.ranks;
  for (RegionLayout& region : layout.regions) region.shard_numel *= choice.pieces / choice.ranks;
  return layout;
}

}  // namespace

UnitSpec make_unit_spec(const UnitDecl& unit, const UnitChoice& choice) {
  UnitSpec spec{.layout = cut(unit, choice),
                .regions = {},
                .stays_gathered = choice.stays_gathered,
                .reshard_group = choice.reshard_group,
                .average = choice.average,
                .divide_by = choice.divide_by};
  for (const RegionLayout& layout : spec.layout.regions) {
    RegionSpec region{.layout = layout, .ranks = choice.ranks};
    const bool floating = layout.type.floating;
    region.master = floating ? choice.master.value_or(layout.type) : layout.type;
    region.compute = floating ? choice.compute.value_or(region.master) : region.master;
    region.reduce = floating ? choice.reduce.value_or(region.master) : region.master;
    region.gradient = choice.keep_low_precision_grads ? region.reduce : region.master;
    region.on_host = choice.on_host;
    region.gradient_on_host = choice.gradient_on_host;
    region.shared_shards = choice.may_share && !choice.on_host && choice.ranks > 1 &&
                           choice.reshard_group == 0 && region.compute == region.master &&
                           layout.shard_numel > 0;
    spec.regions.push_back(region);
  }
  return spec;
}

}  // namespace fsdp::detail
