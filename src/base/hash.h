// FNV-1a over bytes or words: the hash by which ranks compare their data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::detail {

constexpr uint64_t kHashStart = 1469598103934665603U;

// `hash` with one more value.
constexpr uint64_t hash_on(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211U; }

inline uint64_t hash_bytes(uint64_t hash, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = hash_on(hash, at[i]);
  return hash;
}

}  // namespace fsdp::detail
