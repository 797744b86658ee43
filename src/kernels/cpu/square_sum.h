// The sum of squares of numbers in host memory.
#pragma once

#include <cstddef>

namespace fsdp::detail {

// Adds in fp64, in an order that depends on `count` only. All code paths give the same bits.
double square_sum(const float* values, size_t count);

double square_sum_scalar(const float* values, size_t count);
double square_sum_avx2(const float* values, size_t count);

}  // namespace fsdp::detail
