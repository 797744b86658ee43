// The sum of squares of numbers in host memory.
#pragma once

#include <cstddef>

namespace fsdp::detail {

// Adds in fp64, in an order that depends on `count` only.
double square_sum(const float* values, size_t count);

}  // namespace fsdp::detail
