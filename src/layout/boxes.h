// Cuts a flat range of a tensor into rectangles, by which checkpoints describe a shard.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::detail {

struct Box {
  std::vector<int64_t> start;   // per dimension
  std::vector<int64_t> extent;  // per dimension

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

// Note [Boxes]
// Elements [start, start + size) of a row-major tensor are cut into boxes that follow each other. The
// elements of each box are one contiguous part of the range, so a box is copied from and to a shard in one
// piece. The cut has the fewest such boxes and is unique. In two dimensions it is the rest of the first row,
// whole rows, and the beginning of the last row; in n dimensions it has at most 2n - 1 boxes. (Boxes that
// reorder elements could sometimes be fewer: rows 0 and 1 right of a column and rows 1 and 2 left of it.) A
// scalar is one box without dimensions; an empty range has none.
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, int64_t start, int64_t size);

}  // namespace fsdp::detail
