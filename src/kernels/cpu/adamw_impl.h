// Compiled once per instruction set, in a namespace of its own: FSDP_ADAMW_NAMESPACE.
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/adamw.h"

namespace fsdp::detail::FSDP_ADAMW_NAMESPACE {

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

inline bool is_finite(uint32_t bits) { return (bits & 0x7f800000U) != 0x7f800000U; }
// Of what is not finite: an infinity stays one, and nothing else becomes one.
inline uint32_t special(uint32_t bits) { return bits >> 16 | ((bits & 0x7fffffU) != 0 ? 0x40U : 0U); }

// To the nearest, ties to even.
inline uint16_t nearest(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  return static_cast<uint16_t>(is_finite(bits) ? rounded : special(bits));
}

// Note [Narrow moments]
// bf16 of fp32 values, up or down at random so that the error is zero on average: a moment that changes by
// less than a step of bf16 would otherwise never change. What is random comes from the value and the number
// of the step, so that it depends neither on a generator nor on how parameters are sharded; equal values are
// rounded alike.
inline uint16_t at_random(float value, uint32_t step) {
  const auto bits = std::bit_cast<uint32_t>(value);
  auto noise = static_cast<int32_t>(bits * 0x9e3779b1U + step * 0x85ebca6bU);
  noise ^= noise >> 15;
  const uint32_t mixed = static_cast<uint32_t>(noise) * 0xc2b2ae35U;
  const uint32_t rounded = (bits + (mixed >> 16)) >> 16;
  return static_cast<uint16_t>(is_finite(bits) ? rounded : special(bits));
}

inline void keep(float& place, float value, uint32_t /*step*/) { place = value; }
inline void keep(uint16_t& place, float value, uint32_t step) { place = at_random(value, step); }

template <class Moment, bool kMaximum, bool kCopy>
void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers) {
  const AdamWNumbers n = numbers;
  float* __restrict param = arrays.param;
  const float* __restrict grad = arrays.grad;
  auto* __restrict average = static_cast<Moment*>(arrays.average);
  auto* __restrict square = static_cast<Moment*>(arrays.square);
  auto* __restrict maximum = static_cast<Moment*>(arrays.maximum);
  uint16_t* __restrict copy = arrays.copy;
  const float rest1 = 1.0F - n.beta1, rest2 = 1.0F - n.beta2;
  for (size_t i = 0; i < count; ++i) {
    const float g = grad[i];
    const float m = wide(average[i]) + rest1 * (g - wide(average[i]));
    const float v = wide(square[i]) * n.beta2 + rest2 * g * g;
    float largest = v;
    if constexpr (kMaximum) {
      largest = wide(maximum[i]) > v ? wide(maximum[i]) : v;
      keep(maximum[i], largest, n.step);
    }
    const float p = param[i] * n.decay - n.step_size * m / (std::sqrt(largest) * n.unbias + n.eps);
    keep(average[i], m, n.step);
    keep(square[i], v, n.step);
    param[i] = p;
    if constexpr (kCopy) copy[i] = nearest(p);
  }
}

template <class Moment>
void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers) {
  if (arrays.maximum != nullptr)
    arrays.copy != nullptr ? run<Moment, true, true>(arrays, count, numbers)
                           : run<Moment, true, false>(arrays, count, numbers);
  else
    arrays.copy != nullptr ? run<Moment, false, true>(arrays, count, numbers)
                           : run<Moment, false, false>(arrays, count, numbers);
}

inline void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow) {
  narrow ? run<uint16_t>(arrays, count, numbers) : run<float>(arrays, count, numbers);
}

}  // namespace fsdp::detail::FSDP_ADAMW_NAMESPACE
