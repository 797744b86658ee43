// The hash of a checkpoint's bytes: xxh3 with 128 bits. It detects damage; it is no signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fsdp::detail {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const Hash128&) const = default;
};

Hash128 hash128(std::span<const std::byte> bytes);
Hash128 hash128(std::string_view text);

inline constexpr size_t kHashDigits = 32;
// 32 hexadecimal digits, high first.
std::string to_hex(const Hash128& hash);
// None unless `digits` are exactly that, in lower case.
std::optional<Hash128> hash_from_hex(std::string_view digits);

}  // namespace fsdp::detail
