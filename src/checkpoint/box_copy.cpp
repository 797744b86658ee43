#include "checkpoint/box_copy.h"

#include <algorithm>

namespace fsdp::detail {

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t first = std::max(a.start[d], b.start[d]);
    const int64_t last = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (last <= first) return std::nullopt;
    both.start[d] = first;
    both.extent[d] = last - first;
  }
  return both;
}

void each_run(const Box& part, const Box& whole, const std::function<void(const Box&)>& take) {
  size_t inner = part.extent.size();  // first dimension from which on all of `whole` is taken
  while (inner > 0 && part.extent[inner - 1] == whole.extent[inner - 1]) --inner;
  const size_t outer = inner > 0 ? inner - 1 : 0;  // dimensions before this are taken one by one
  Box run = part;
  for (size_t d = 0; d < outer; ++d) run.extent[d] = 1;
  while (true) {
    take(run);
    size_t d = outer;
    while (d > 0 && run.start[d - 1] + 1 == part.start[d - 1] + part.extent[d - 1]) {
      run.start[d - 1] = part.start[d - 1];
      --d;
    }
    if (d == 0) return;
    ++run.start[d - 1];
  }
}

int64_t offset_in(const Box& whole, const std::vector<int64_t>& start) {
  int64_t offset = 0;
  for (size_t d = 0; d < start.size(); ++d) offset = offset * whole.extent[d] + start[d] - whole.start[d];
  return offset;
}

at::Tensor cut(at::Tensor view, const Box& of, const Box& part) {
  for (size_t d = 0; d < part.start.size(); ++d)
    view = view.narrow(static_cast<int64_t>(d), part.start[d] - of.start[d], part.extent[d]);
  return view;
}

}  // namespace fsdp::detail
