// Compiled once per instruction set, in a namespace of its own: FSDP_ADAMW_NAMESPACE.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/adamw.h"

#define FSDP_NARROW_NAMESPACE FSDP_ADAMW_NAMESPACE
#include "kernels/cpu/narrow_impl.h"

namespace fsdp::detail::FSDP_ADAMW_NAMESPACE {

inline void keep(float& place, float value, uint32_t /*step*/) { place = value; }
inline void keep(uint16_t& place, float value, uint32_t step) { place = at_random(value, step); }

// The operations and their order are those of LibTorch's fused operator, so the bits are too. A factor of 1
// changes none.
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
    const float g = grad[i] * n.factor;
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

constexpr size_t kBlock = 512;  // elements that are narrowed while they are in cache
static_assert(kBlock % kLine == 0);

template <class Moment, bool kMaximum>
void run(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers) {
  if (arrays.copy == nullptr) return update<Moment, kMaximum>(arrays, 0, count, numbers);
  const float* param = arrays.param;
  uint16_t* copy = arrays.copy;
  size_t i = 0;
  const auto one_by_one = [&](size_t end) {
    update<Moment, kMaximum>(arrays, i, end, numbers);
    for (; i < end; ++i) copy[i] = nearest(param[i]);
  };
  one_by_one(std::min(count, (64 - reinterpret_cast<uintptr_t>(copy) % 64) % 64 / sizeof(uint16_t)));
  while (i + kBlock <= count) {
    const size_t end = i + kBlock;
    update<Moment, kMaximum>(arrays, i, end, numbers);
    for (; i < end; i += kLine) narrow_line(copy + i, param + i);
  }
  one_by_one(count);
  end_lines();
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
