// A flat range of a tensor as rectangles: checkpoints describe a shard by these.
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
// Elements [start, start + size) of a row-major tensor, cut into boxes that follow each other: the elements
// of each are one run of the range, so that a box can be copied from and to a shard in one piece. These are
// the fewest such boxes, and there is one way only to cut them. In two dimensions they are the rest of the
// row at which the range starts, whole rows, and the beginning of the row in which it ends; in n dimensions
// at most 2n - 1. (Boxes that reorder elements could sometimes be fewer: rows 0 and 1 right of a column and
// rows 1 and 2 left of it.) A scalar is one box without dimensions; an empty range has none.
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, int64_t start, int64_t size);

}  // namespace fsdp::detail
