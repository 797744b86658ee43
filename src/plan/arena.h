// Offsets of gathered units in the arena, from their lifetimes. Pure integers.
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
  int64_t fixed = -1;  // a given offset; -1: to be found. Lifetimes with given offsets do not overlap.
};

struct Packing {
  std::vector<int64_t> offsets;  // one per lifetime
  int64_t bytes = 0;             // the arena that holds them all
};

// Finds offsets such that lifetimes that share a run share no byte. Offsets are sums and differences of the
// given sizes: multiples of 256 if all sizes are. The same lifetimes always give the same offsets.
Packing pack(const std::vector<Lifetime>& lifetimes);

// The highest number of bytes alive in one run: no packing is smaller.
int64_t peak_bytes(const std::vector<Lifetime>& lifetimes);

struct Range {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
};

// The lowest offset at which `bytes` fit between the `taken` ranges, for gathers outside any plan. Empty:
// none.
std::optional<int64_t> find_hole(std::vector<Range> taken, int64_t bytes, int64_t arena_bytes);

}  // namespace fsdp::detail
