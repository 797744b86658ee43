// Log lines of the library: warnings, and what start, sharding and plans did. On stderr unless a sink is set.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fsdp {

enum class LogLevel : uint8_t { error, warn, info, debug };

// Gets every line whose level is enabled, without "fsdp: " and line end. May be called from any thread, by
// one at a time. It must not log.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// Lines go to `sink` instead of stderr; an empty one restores stderr. Returns the sink that was set before.
LogSink set_log_sink(LogSink sink);

// Writes lines of `level` and of more severe levels. Overrides FSDP_LOG (default: info).
void set_log_level(LogLevel level);

// Returns `line` as it looks on stderr, for example "fsdp: warning: " and the line.
std::string format_log_line(LogLevel level, std::string_view line);

}  // namespace fsdp
