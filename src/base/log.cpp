#include "base/log.h"

#include <unistd.h>

#include <string>

#include "base/env.h"

namespace fsdp::detail {

namespace {

LogLevel threshold() {
  const std::string wanted = env_string("FSDP_LOG").value_or("info");
  if (wanted == "error") return LogLevel::error;
  if (wanted == "warn") return LogLevel::warn;
  if (wanted == "debug") return LogLevel::debug;
  return LogLevel::info;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  static const LogLevel limit = threshold();
  if (level > limit) return;
  std::string line = "fsdp: ";
  if (level == LogLevel::error) line += "error: ";
  if (level == LogLevel::warn) line += "warning: ";
  line.append(message).push_back('\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fsdp::detail
