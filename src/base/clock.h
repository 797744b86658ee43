// The clock of all timeouts and measurements.
#pragma once

#include <chrono>

namespace fsdp::detail {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Now plus `time`; Clock::time_point::max() if that overflows.
inline Clock::time_point deadline_after(Milliseconds time) {
  const auto now = Clock::now();
  const auto room = std::chrono::duration_cast<Milliseconds>(Clock::time_point::max() - now);
  return time < room ? now + time : Clock::time_point::max();
}

inline Milliseconds elapsed_since(Clock::time_point start) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace fsdp::detail
