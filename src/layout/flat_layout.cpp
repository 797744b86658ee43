#include "layout/flat_layout.h"

#include <algorithm>

#include "base/assert.h"

namespace fsdp::detail {

namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t alignment_of(ElementType type, int64_t narrowest_bytes, int64_t align_bytes) {
  const int64_t bytes = narrowest_bytes > 0 ? std::min<int64_t>(narrowest_bytes, type.bytes) : type.bytes;
  return std::max<int64_t>(1, align_bytes / bytes);
}

int32_t region_for(UnitLayout& layout, const ParamDecl& param) {
  for (size_t i = 0; i < layout.regions.size(); ++i)
    if (layout.regions[i].type == param.type && layout.regions[i].trainable == param.trainable)
      return static_cast<int32_t>(i);
  layout.regions.push_back({.type = param.type, .trainable = param.trainable, .used = 0, .shard_numel = 0});
  return static_cast<int32_t>(layout.regions.size() - 1);
}

}  // namespace

UnitLayout make_layout(const UnitDecl& unit, int ranks, int64_t narrowest_bytes, int64_t align_bytes) {
  FSDP_ASSERT(ranks >= 1);
  UnitLayout layout{.name = unit.name, .ranks = ranks, .regions = {}, .params = {}};
  for (const ParamDecl& param : unit.params) {
    const int32_t index = region_for(layout, param);
    RegionLayout& region = layout.regions[static_cast<size_t>(index)];
    const int64_t offset = round_up(region.used, alignment_of(param.type, narrowest_bytes, align_bytes));
    layout.params.push_back({.param = param, .region = index, .offset = offset, .numel = param.numel()});
    region.used = offset + param.numel();
  }
  for (RegionLayout& region : layout.regions) {
    const int64_t even = (region.used + ranks - 1) / ranks;
    region.shard_numel = round_up(even, alignment_of(region.type, narrowest_bytes, align_bytes));
  }
  return layout;
}

ShardRange UnitLayout::range(const Placement& param, int rank) const {
  const int64_t shard = regions[static_cast<size_t>(param.region)].shard_numel;
  const int64_t first = std::max(param.offset, shard * rank);
  const int64_t last = std::min(param.offset + param.numel, shard * (rank + 1));
  if (last <= first) return {.rank = rank, .start = 0, .size = 0, .in_shard = 0};
  return {
      .rank = rank, .start = first - param.offset, .size = last - first, .in_shard = first - shard * rank};
}

std::vector<ShardRange> UnitLayout::ranges(const Placement& param) const {
  std::vector<ShardRange> all;
  if (param.numel == 0) return all;
  const int64_t shard = regions[static_cast<size_t>(param.region)].shard_numel;
  const auto first = static_cast<int>(param.offset / shard);
  const auto last = static_cast<int>((param.offset + param.numel - 1) / shard);
  for (int rank = first; rank <= last; ++rank) all.push_back(range(param, rank));
  return all;
}

}  // namespace fsdp::detail
