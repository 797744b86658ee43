#include "layout/boxes.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "base/assert.h"

namespace fsdp::detail {

namespace {

int64_t product(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
  return strides;
}

// The largest box that begins at element `first` and ends at or before `end`: a part of the outermost
// dimension in which a whole step starts at `first` and fits.
Box box_from(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, int64_t first,
             int64_t end) {
  Box box{.start = {}, .extent = std::vector<int64_t>(shape.size(), 1)};
  for (size_t d = 0; d < shape.size(); ++d) box.start.push_back(first / strides[d] % shape[d]);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (first % strides[d] != 0 || end - first < strides[d]) continue;
    box.extent[d] = std::min(shape[d] - box.start[d], (end - first) / strides[d]);
    std::copy(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1, shape.end(),
              box.extent.begin() + static_cast<std::ptrdiff_t>(d) + 1);
    break;
  }
  return box;
}

}  // namespace

int64_t Box::numel() const { return product(extent); }

std::vector<Box> boxes_of(const std::vector<int64_t>& shape, int64_t start, int64_t size) {
  FSDP_ASSERT(start >= 0 && size >= 0 && start <= product(shape) - size);
  const std::vector<int64_t> strides = row_major_strides(shape);
  std::vector<Box> boxes;
  for (int64_t first = start; first < start + size; first += boxes.back().numel())
    boxes.push_back(box_from(shape, strides, first, start + size));
  return boxes;
}

}  // namespace fsdp::detail
