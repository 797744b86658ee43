#include "kernels/cpu/stream_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fsdp::detail {

#if defined(__x86_64__)

namespace {

// Up to a quarter of the last-level cache the target should stay in the cache, for its next reader.
size_t stream_from() {
  constexpr size_t kUnknown = 4 << 20;
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return cache > 0 ? static_cast<size_t>(cache) / 4 : kUnknown;
}

void copy_past_cache(void* dst, const void* src, size_t bytes) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  const size_t head = std::min(bytes, (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  const size_t lines = (bytes - head) / 64;
  for (size_t i = 0; i < lines; ++i, to += 64, from += 64) {
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to, from, bytes - head - lines * 64);
  _mm_sfence();  // the stores above are visible before the flag that announces them
}

}  // namespace

void stream_copy(void* dst, const void* src, size_t bytes) {
  static const size_t threshold = stream_from();
  if (bytes >= threshold)
    copy_past_cache(dst, src, bytes);
  else if (bytes != 0)
    std::memcpy(dst, src, bytes);
}

#else

void stream_copy(void* dst, const void* src, size_t bytes) {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

#endif

}  // namespace fsdp::detail
