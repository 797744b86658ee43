// fp32 rounded to bf16. Compiled once per instruction set, in the namespace FSDP_NARROW_NAMESPACE.
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fsdp::detail::FSDP_NARROW_NAMESPACE {

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

// The upper half of the sum. NaNs stay as they are, since an addition could carry them out of their range.
inline uint16_t upper(float value, uint32_t added) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nan = value != value ? ~0U : 0U;
  return static_cast<uint16_t>(((bits + (added & ~nan)) | (0x400000U & nan)) >> 16);
}

// Rounds to nearest, ties to even.
inline uint16_t nearest(float value) {
  return upper(value, 0x7fffU + (std::bit_cast<uint32_t>(value) >> 16 & 1U));
}

// Note [Narrow moments]
// A moment that changes by less than a step of bf16 would never change if it were rounded to the nearest. So
// fp32 values are rounded to bf16 up or down at random, with zero error on average. The random bits come from
// the value and the number of the step: they depend neither on a generator nor on how parameters are sharded.
// Equal values are rounded alike.
inline uint16_t at_random(float value, uint32_t step) {
  const auto bits = std::bit_cast<uint32_t>(value);
  auto noise = static_cast<int32_t>(bits * 0x9e3779b1U + step * 0x85ebca6bU);
  noise ^= noise >> 15;
  const uint32_t mixed = static_cast<uint32_t>(noise) * 0xc2b2ae35U;
  return upper(value, mixed >> 16);
}

// nearest() for one cache line, written past the cache: a device reads it next, not the host. `to` is aligned
// to a line. Intrinsics, because compilers emit several times as many instructions.
constexpr size_t kLine = 64 / sizeof(uint16_t);

#if defined(__AVX512BW__)

inline __m256i nearest(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
inline void narrow_line(uint16_t* to, const float* from) {
  const __m512i low = _mm512_castsi256_si512(nearest(_mm512_loadu_ps(from)));
  const __m512i line = _mm512_inserti64x4(low, nearest(_mm512_loadu_ps(from + 16)), 1);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
}

#elif defined(__AVX2__)

inline __m256i nearest(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void narrow_line(uint16_t* to, const float* from) {
  for (size_t i = 0; i < kLine; i += 16) {
    const __m256i low = nearest(_mm256_loadu_ps(from + i));
    const __m256i packed = _mm256_packus_epi32(low, nearest(_mm256_loadu_ps(from + i + 8)));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(packed, 0xd8));
  }
}

#else

inline void narrow_line(uint16_t* to, const float* from) {
  for (size_t i = 0; i < kLine; ++i) to[i] = nearest(from[i]);
}

#endif

// Makes the stores past the cache visible before later stores of this thread.
inline void end_lines() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

}  // namespace fsdp::detail::FSDP_NARROW_NAMESPACE
