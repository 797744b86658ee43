// Compiled once per instruction set, in a namespace of its own: FSDP_ADAMW_NAMESPACE.
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/stream_copy.h"

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

// The operations and their order are those of LibTorch's fused operator, and so the bits.
template <class Moment, bool kMaximum>
void update(const AdamWArrays& arrays, size_t first, size_t end, const AdamWNumbers& numbers) {
  const AdamWNumbers n = numbers;
  float* __restrict param = arrays.param;
  const float* __restrict grad = arrays.grad;
  auto* __restrict average = static_cast<Moment*>(arrays.average);
  auto* __restrict square = static_cast<Moment*>(arrays.square);
  auto* __restrict maximum = static_cast<Moment*>(arrays.maximum);
  const bool near = n.rest1 < 0.5F;  // interpolates from the nearer end
  const float weight = near ? n.rest1 : n.rest1 - 1.0F;
  for (size_t i = first; i < end; ++i) {
    const float g = grad[i];
    const float before = wide(average[i]);
    const float m = std::fma(weight, g - before, near ? before : g);
    const float v = std::fma(n.rest2 * g, g, wide(square[i]) * n.beta2);
    float largest = v;
    if constexpr (kMaximum) {
      largest = wide(maximum[i]) > v ? wide(maximum[i]) : v;
      keep(maximum[i], largest, n.step);
    }
    param[i] = param[i] * n.decay - n.step_size * m / (std::sqrt(largest) / n.bias + n.eps);
    keep(average[i], m, n.step);
    keep(square[i], v, n.step);
  }
}

constexpr size_t kBlock = 4096;  // elements whose copy is put together in cache

// Parameters that were just written, while they are in cache. A device reads the copy next, not the host.
inline void narrow_copy(const AdamWArrays& arrays, size_t first, size_t end) {
  const float* __restrict param = arrays.param;
  alignas(64) uint16_t narrow[kBlock];
  for (size_t i = first; i < end; ++i) narrow[i - first] = nearest(param[i]);
  copy_past_cache(arrays.copy + first, narrow, (end - first) * sizeof(uint16_t));
}

template <class Moment, bool kMaximum>
void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers) {
  if (arrays.copy == nullptr) return update<Moment, kMaximum>(arrays, 0, count, numbers);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t end = first + kBlock < count ? first + kBlock : count;
    update<Moment, kMaximum>(arrays, first, end, numbers);
    narrow_copy(arrays, first, end);
  }
}

template <class Moment>
void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers) {
  arrays.maximum != nullptr ? run<Moment, true>(arrays, count, numbers)
                            : run<Moment, false>(arrays, count, numbers);
}

inline void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow) {
  narrow ? run<uint16_t>(arrays, count, numbers) : run<float>(arrays, count, numbers);
}

}  // namespace fsdp::detail::FSDP_ADAMW_NAMESPACE
