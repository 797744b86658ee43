// The one implementation of tree_sum, compiled once per instruction set. See Note [The tree of sums].
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/tree_sum.h"

// Each including file sets its own namespace, so that the linker never mixes code for different processors.
namespace fsdp::detail::FSDP_SUM_NAMESPACE {

constexpr int kFan = 8;         // sources added in registers at once
constexpr size_t kBlock = 512;  // elements kept in first-level cache while more than kFan sources are added

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<Bf16> {
  using type = float;
};
template <>
struct Wide<F16> {
  using type = float;
};

template <class T>
inline T load(T value) {
  return value;
}
inline float load(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }
// Exponent re-bias by one multiplication: exact for normal, subnormal and zero; infinities and NaN are
// patched.
inline float load(F16 value) {
  const uint32_t bits = value.bits;
  const float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  uint32_t out = std::bit_cast<uint32_t>(magnitude);
  out |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u | ((bits & 0x3ffu) << 13) : 0u;
  return std::bit_cast<float>(out | ((bits & 0x8000u) << 16));
}

template <class T>
inline void store(T& out, T value) {
  out = value;
}
inline void store(Bf16& out, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const uint32_t quiet = (bits >> 16) | 0x40u;
  out.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
inline void store(F16& out, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal range: move the exponent and round to nearest even in integers.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal range: adding 0.5 aligns the significand so that the hardware rounds it for us.
  const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t out16 = magnitude < 0x38800000u ? tiny : normal;
  out16 = magnitude >= 0x477ff000u ? special : out16;  // rounds to infinity, or is infinite or NaN
  out.bits = static_cast<uint16_t>(out16 | ((bits >> 16) & 0x8000u));
}

// The tree over kCount sources from kFirst on, unrolled by the compiler.
template <int kFirst, int kCount, class T>
inline typename Wide<T>::type tree(const T* const* src, size_t i) {
  using W = typename Wide<T>::type;
  if constexpr (kCount == 1) {
    return load(src[kFirst][i]);
  } else {
    constexpr int kLeft = static_cast<int>(std::bit_floor(static_cast<unsigned>(kCount - 1)));
    return static_cast<W>(tree<kFirst, kLeft>(src, i) + tree<kFirst + kLeft, kCount - kLeft>(src, i));
  }
}

template <class W>
inline W scaled(W sum, double scale) {
  if constexpr (std::is_floating_point_v<W>) return sum * static_cast<W>(scale);
  return sum;
}

template <int kCount, class T>
void sum_direct(T* dst, const T* const* src, size_t count, double scale) {
  using W = typename Wide<T>::type;
  if (scale == 1.0) {
    for (size_t i = 0; i < count; ++i) store(dst[i], tree<0, kCount>(src, i));
  } else {
    for (size_t i = 0; i < count; ++i) store(dst[i], scaled<W>(tree<0, kCount>(src, i), scale));
  }
}

template <int kCount, class T>
void sum_wide(typename Wide<T>::type* dst, const T* const* src, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = tree<0, kCount>(src, i);
}

// Calls fn<n>() for n = count in 1..kFan.
template <class Fn>
void with_fan(int count, Fn fn) {
  switch (count) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    case 4:
      return fn.template operator()<4>();
    case 5:
      return fn.template operator()<5>();
    case 6:
      return fn.template operator()<6>();
    case 7:
      return fn.template operator()<7>();
    default:
      return fn.template operator()<8>();
  }
}

// More than kFan sources: groups of kFan are subtrees; equal-sized subtrees are merged as in a binary
// counter.
template <class T>
void sum_many(T* dst, const void* const* src, int sources, size_t count, double scale) {
  using W = typename Wide<T>::type;
  constexpr int kLevels = 16;  // kFan * 2^15 sources
  static thread_local W partial[kLevels][kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t n = std::min(kBlock, count - start);
    int depth = 0;
    const auto merge_top = [&] {
      --depth;
      for (size_t i = 0; i < n; ++i)
        partial[depth - 1][i] = static_cast<W>(partial[depth - 1][i] + partial[depth][i]);
    };
    int group = 0;
    for (int first = 0; first < sources; first += kFan, ++group) {
      const T* part[kFan];
      const int fan = std::min(kFan, sources - first);
      for (int k = 0; k < fan; ++k) part[k] = static_cast<const T*>(src[first + k]) + start;
      with_fan(fan, [&]<int kCount>() { sum_wide<kCount>(partial[depth], part, n); });
      ++depth;
      for (int carry = group; carry & 1; carry >>= 1) merge_top();
    }
    while (depth > 1) merge_top();
    for (size_t i = 0; i < n; ++i) store(dst[start + i], scaled<W>(partial[0][i], scale));
  }
}

template <class T>
void sum_typed(void* dst, const void* const* src, int sources, size_t count, double scale) {
  auto* out = static_cast<T*>(dst);
  if (sources > kFan) return sum_many(out, src, sources, count, scale);
  const T* in[kFan] = {};
  for (int k = 0; k < sources; ++k) in[k] = static_cast<const T*>(src[k]);
  with_fan(sources, [&]<int kCount>() { sum_direct<kCount>(out, in, count, scale); });
}

inline void run(void* dst, const void* const* src, int sources, size_t count, DType type, double scale) {
  switch (type) {
    case DType::f32:
      return sum_typed<float>(dst, src, sources, count, scale);
    case DType::f64:
      return sum_typed<double>(dst, src, sources, count, scale);
    case DType::bf16:
      return sum_typed<Bf16>(dst, src, sources, count, scale);
    case DType::f16:
      return sum_typed<F16>(dst, src, sources, count, scale);
    case DType::i64:
      return sum_typed<uint64_t>(dst, src, sources, count, scale);
    case DType::u8:
      return sum_typed<uint8_t>(dst, src, sources, count, scale);
  }
}

}  // namespace fsdp::detail::FSDP_SUM_NAMESPACE
