#include "comm/heartbeat/wait_words.h"

#include <array>
#include <ctime>
#include <fstream>
#include <iterator>

namespace fsdp::detail {

namespace {

void add(std::string& text, const char* separator, const std::string& more) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

std::string signs(const Beat& beat, const std::string& state, Milliseconds silent) {
  std::string text = beat.collective.empty() ? "" : "its last collective was " + beat.collective;
  if (!state.empty())
    add(text, "; ", "its process is " + state);
  else if (silent.count() > 0)
    add(text, "; ", "it has given no sign of life for " + whole_seconds(silent));
  return text;
}

}  // namespace

// The third field of /proc/PID/stat, behind the program's name in parentheses.
std::string process_state(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return "gone";
  switch (text[name_end + 2]) {
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    case 'D':
      return "waiting for a disk or a device";
    case 'Z':
    case 'X':
      return "gone";
    default:
      return "";
  }
}

std::string where_it_is(const Beat& beat, const std::string& state, Milliseconds silent) {
  std::string text = beat.step < 0 ? "" : "at step " + std::to_string(beat.step);
  add(text, ", ", beat.activity);
  if (!beat.activity.empty() && beat.activity_ms >= 1000)
    text += ", for " + whole_seconds(Milliseconds(beat.activity_ms));
  if (text.empty()) text = "not yet in a call of the model";
  add(text, "; ", signs(beat, state, silent));
  return text;
}

std::string more_about(const Beat& beat, const std::string& state, Milliseconds silent) {
  std::string text = beat.step < 0 ? "" : "it is at step " + std::to_string(beat.step);
  add(text, "; ", signs(beat, state, silent));
  if (text.empty()) return "";
  text.front() = 'I';  // all begin with "it"
  return ". " + text;
}

std::string whole_seconds(Milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

std::string time_of_day(Milliseconds ago) {
  const auto then = std::chrono::system_clock::now() - ago;
  const std::time_t time = std::chrono::system_clock::to_time_t(then);
  std::tm local{};
  ::localtime_r(&time, &local);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  return text.data();
}

}  // namespace fsdp::detail
