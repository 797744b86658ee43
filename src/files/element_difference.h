// How far two arrays of elements lie apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp::detail {

struct ElementDifference {
  int64_t elements = 0;  // whose bits differ
  double largest = 0;    // absolute difference of floating and complex elements
};

// Whether `dtype` (a name of safetensors, or "C128") is floating or complex.
bool has_difference(std::string_view dtype);

// Adds what differs between `a` and `b`, whole elements of `dtype` and equally many. NaNs of other bits count
// as elements that differ, with a difference of 0; a NaN against a number is infinitely far.
void add_difference(std::string_view dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                    ElementDifference& sum);

}  // namespace fsdp::detail
