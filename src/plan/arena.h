// Where in the arena each gathered unit lies: from lifetimes to offsets. Pure integers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::detail {

// Memory that is needed in the runs [begin, end) of a plan.
struct Lifetime {
  int32_t begin = 0;
  int32_t end = 0;
  int64_t bytes = 0;
  int64_t fixed = -1;  // its offset is given; -1: it is to be found. Given ones do not overlap.
};

struct Packing {
  std::vector<int64_t> offsets;  // one per lifetime
  int64_t bytes = 0;             // the arena that holds them all
};

// Offsets such that no two lifetimes that share a run share a byte. Sums of the given sizes and differences
// of such sums: multiples of 256 where all sizes are. The same lifetimes give the same offsets, always.
Packing pack(const std::vector<Lifetime>& lifetimes);

// The most bytes alive in one run: no packing is smaller.
int64_t peak_bytes(const std::vector<Lifetime>& lifetimes);

struct Range {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
};

// The lowest offset at which `bytes` fit between what is taken, for gathers that no plan foresaw. Empty:
// none.
std::optional<int64_t> find_hole(std::vector<Range> taken, int64_t bytes, int64_t arena_bytes);

}  // namespace fsdp::detail
