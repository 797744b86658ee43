// Messages to the person at the terminal, on stderr only. FSDP_LOG=error|warn|info|debug (default info).
#pragma once

#include <string_view>

namespace fsdp::detail {

enum class LogLevel { error, warn, info, debug };

// One line, written with one call so that ranks do not mix within it.
void log(LogLevel level, std::string_view message);

inline void log_warn(std::string_view message) { log(LogLevel::warn, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }

}  // namespace fsdp::detail
