#include "base/log.h"

#include <fsdp/error.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/env.h"

namespace fsdp::detail {

namespace {

constexpr std::array<const char*, 4> kLevels{"error", "warn", "info", "debug"};  // as in LogLevel

constexpr int kUnread = -1;
std::atomic<int> level_in_use{kUnread};

// None if `text` is not a level.
std::optional<LogLevel> parse_level(const std::string& text) {
  for (size_t i = 0; i < kLevels.size(); ++i)
    if (strcasecmp(text.c_str(), kLevels[i]) == 0) return static_cast<LogLevel>(i);
  return std::nullopt;
}

// Never destroyed: threads may log while the process ends.
struct Sink {
  std::mutex mutex;
  LogSink take;
};

Sink& sink() {
  static Sink* const only = new Sink;
  return *only;
}

std::string wanted_level() { return env_string("FSDP_LOG").value_or("info"); }

}  // namespace

void read_log_level() {
  const std::string wanted = wanted_level();
  const auto level = parse_level(wanted);
  if (!level)
    throw RendezvousError("FSDP_LOG='" + wanted +
                          "' is not a log level. Set it to error, warn, info or debug, or unset it (info).");
  level_in_use = static_cast<int>(*level);
}

bool logs(LogLevel level) {
  int limit = level_in_use;
  if (limit == kUnread)
    level_in_use = limit = static_cast<int>(parse_level(wanted_level()).value_or(LogLevel::info));
  return static_cast<int>(level) <= limit;
}

void log(LogLevel level, std::string_view message) {
  if (!logs(level)) return;
  Sink& to = sink();
  const std::lock_guard lock(to.mutex);
  if (to.take) return to.take(level, message);
  const std::string line = format_log_line(level, message) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fsdp::detail

namespace fsdp {

LogSink set_log_sink(LogSink sink) {
  detail::Sink& to = detail::sink();
  const std::lock_guard lock(to.mutex);
  return std::exchange(to.take, std::move(sink));
}

void set_log_level(LogLevel level) { detail::level_in_use = static_cast<int>(level); }

std::string format_log_line(LogLevel level, std::string_view line) {
  std::string text = "fsdp: ";
  if (level == LogLevel::error) text += "error: ";
  if (level == LogLevel::warn) text += "warning: ";
  if (level == LogLevel::debug) text += "debug: ";
  return text.append(line);
}

}  // namespace fsdp
