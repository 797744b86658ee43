// The difference between two arrays of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp::detail {

struct ElementDifference {
  int64_t elements = 0;  // number of elements whose bits differ
  double largest = 0;    // largest absolute difference of floating and complex elements
};

// True if `dtype` (a name of safetensors, or "C128") is floating or complex.
bool has_difference(std::string_view dtype);

// Adds the difference between `a` and `b`, two arrays of `dtype` of the same length. NaNs with different bits
// count as different elements with a difference of 0; if only one side is NaN, the difference is infinite.
void add_difference(std::string_view dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                    ElementDifference& sum);

}  // namespace fsdp::detail
