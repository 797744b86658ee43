// The position of each parameter in its unit's flat buffers, and the elements each rank owns. Pure integers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/units.h"

namespace fsdp::detail {

inline constexpr int64_t kAlignBytes = 256;

// Note [Flat layout]
// A unit has one region per combination of element type and trainable or frozen, each a flat buffer of its
// own: frozen regions get no gradient and no optimizer memory. Within a region parameters follow each other
// in order of definition, each on a multiple of `alignment` elements. The region is cut into `ranks` equal
// shards, whose size is a multiple of `alignment` too. The elements between and behind parameters are
// padding, which is always zero. `alignment` makes addresses multiples of kAlignBytes in the narrowest type
// the region is ever kept in: a misaligned pointer costs NCCL its wide loads.
struct RegionLayout {
  ElementType type;
  bool trainable = true;
  int64_t used = 0;         // elements up to the end of the last parameter
  int64_t shard_numel = 0;  // elements each rank owns

  int64_t total(int ranks) const { return shard_numel * ranks; }
};

// The position of one parameter: region[index].flat[offset, offset + numel).
struct Placement {
  ParamDecl param;
  int32_t region = 0;
  int64_t offset = 0;
  int64_t numel = 0;
};

// The part of a parameter that one rank owns, in elements of the flattened parameter; `size` 0: no part.
struct ShardRange {
  int rank = 0;
  int64_t start = 0;
  int64_t size = 0;
  int64_t in_shard = 0;  // its offset in that rank's shard of the region
};

struct UnitLayout {
  std::string name;
  int ranks = 1;
  std::vector<RegionLayout> regions;
  std::vector<Placement> params;

  ShardRange range(const Placement& param, int rank) const;
  // The ranks that own a part of it, in order.
  std::vector<ShardRange> ranges(const Placement& param) const;
};

// `narrowest_bytes`: the smallest element size in which the unit's floating regions are kept, for example 2
// for bf16 compute; 0: as they are. `align_bytes`: kAlignBytes, except in tests of the bare arithmetic.
UnitLayout make_layout(const UnitDecl& unit, int ranks, int64_t narrowest_bytes = 0,
                       int64_t align_bytes = kAlignBytes);

}  // namespace fsdp::detail
