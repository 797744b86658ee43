// The clock of all timeouts and measurements.
#pragma once

#include <chrono>

namespace fsdp::detail {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

inline Milliseconds elapsed_since(Clock::time_point start) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace fsdp::detail
