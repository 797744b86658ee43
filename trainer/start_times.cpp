#include "trainer/start_times.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace fsdp::train {

namespace {

using Clock = std::chrono::steady_clock;

// The time since this process was started. 0: the system does not say.
Clock::duration age_of_process() {
  std::ifstream file("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  constexpr int kStartTime = 20;  // the fields behind the name, from 1
  std::string field;
  for (int i = 0; i < kStartTime; ++i) fields >> field;
  timespec now{};
  if (!fields || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const double since_boot = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  const double started = std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(since_boot - started));
}

double in_seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string two_digits(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", seconds);
  return text;
}

}  // namespace

void StartTimes::end(const std::string& part) {
  const Clock::time_point now = Clock::now();
  parts_.emplace_back(part, parts_.empty() ? age_of_process() : now - last_);
  last_ = now;
}

std::vector<std::pair<std::string, double>> StartTimes::seconds() const {
  std::vector<std::pair<std::string, double>> all;
  for (const auto& [part, time] : parts_)
    if (time >= std::chrono::milliseconds(1)) all.emplace_back(part, in_seconds(time));
  return all;
}

std::string StartTimes::text() const {
  double whole = 0;
  std::string parts;
  for (const auto& [part, seconds] : seconds()) {
    whole += seconds;
    parts += (parts.empty() ? ": " : ", ") + part + " " + two_digits(seconds);
  }
  return two_digits(whole) + " s" + parts;
}

}  // namespace fsdp::train
