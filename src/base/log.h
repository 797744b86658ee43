// Messages to the person at the terminal: on stderr, or to the sink of <fsdp/log.h>.
// FSDP_LOG=error|warn|info|debug (default info).
#pragma once

#include <fsdp/log.h>

#include <concepts>
#include <string_view>

namespace fsdp::detail {

// Takes the level from FSDP_LOG. Throws RendezvousError if it is not one of the four. init() and run_local()
// call this; a line logged before that takes a wrong value as info.
void read_log_level();

// True if lines of `level` are written.
bool logs(LogLevel level);

// One line, written with one call so that ranks do not mix within it.
void log(LogLevel level, std::string_view message);

inline void log_warn(std::string_view message) { log(LogLevel::warn, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }

// Logs what `message()` returns; calls it only if debug lines are written.
template <std::invocable Message>
void log_debug(const Message& message) {
  if (logs(LogLevel::debug)) log(LogLevel::debug, message());
}

}  // namespace fsdp::detail
