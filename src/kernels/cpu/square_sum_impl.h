// The one implementation of square_sum, compiled once per instruction set.
#pragma once

#include <cstddef>

namespace fsdp::detail::FSDP_SQUARES_NAMESPACE {

inline double run(const float* values, size_t count) {
  // Sums that do not wait for each other, which a compiler can keep in vector registers.
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  const size_t whole = count - count % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (size_t i = whole; i < count; ++i) {
    const double value = values[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace fsdp::detail::FSDP_SQUARES_NAMESPACE
