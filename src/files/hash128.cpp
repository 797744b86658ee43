#include "files/hash128.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming)
#include <xxhash.h>

namespace fsdp::detail {

namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::optional<uint64_t> word_from_hex(std::string_view digits) {
  uint64_t word = 0;
  for (const char digit : digits) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    word = word << 4 | value;
  }
  return word;
}

}  // namespace

Hash128 hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.high = hash.high64, .low = hash.low64};
}

Hash128 hash128(std::string_view text) { return hash128(std::as_bytes(std::span(text))); }

std::string to_hex(const Hash128& hash) {
  std::string text;
  for (const uint64_t word : {hash.high, hash.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  return text;
}

std::optional<Hash128> hash_from_hex(std::string_view digits) {
  if (digits.size() != kHashDigits) return std::nullopt;
  const auto high = word_from_hex(digits.substr(0, 16));
  const auto low = word_from_hex(digits.substr(16));
  if (!high || !low) return std::nullopt;
  return Hash128{.high = *high, .low = *low};
}

}  // namespace fsdp::detail
