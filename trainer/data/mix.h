// A hash of a number: the same on every platform.
#pragma once

#include <cstdint>

namespace fsdp::data {

// Neighbouring values give unrelated ones (splitmix64's last step).
constexpr uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

}  // namespace fsdp::data
