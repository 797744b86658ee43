#include "comm/heartbeat/beat.h"

#include <algorithm>
#include <sstream>

#include "base/clock.h"

namespace fsdp::detail {

namespace {

constexpr char kSeparator = '\x1f';

}  // namespace

void BeatPage::Text::write(std::string_view first, std::string_view second, std::string_view third,
                           std::string_view fourth) {
  size_t at = 0;
  for (const std::string_view part : {first, second, third, fourth})
    for (size_t i = 0; i < part.size() && at + 1 < kTextBytes; ++i)
      bytes[at++].store(part[i], std::memory_order_relaxed);
  bytes[at].store('\0', std::memory_order_relaxed);
}

std::string BeatPage::Text::read() const {
  std::string text;
  for (size_t i = 0; i + 1 < kTextBytes; ++i) {
    const char next = bytes[i].load(std::memory_order_relaxed);
    if (next == '\0') break;
    text += next;
  }
  return text;
}

void BeatPage::note_collective(std::string_view op, std::string_view label) {
  if (label.empty()) return collective.write(op);
  label = label.substr(0, kTextBytes - op.size() - 4);
  collective.write(op, " '", label, "'");
}

Beat BeatPage::read() const {
  Beat beat;
  beat.count = count.load();
  beat.waits = waits.load();
  beat.meetings = meetings.load();
  beat.step = step.load() - 1;
  beat.left = left.load() != 0;
  beat.activity = activity.read();
  beat.collective = collective.read();
  const auto since = Clock::time_point(Clock::duration(activity_since.load()));
  beat.activity_ms = beat.activity.empty() ? 0 : elapsed_since(since).count();
  return beat;
}

std::string beat_line(int rank, const Beat& beat) {
  std::ostringstream out;
  out << rank << ' ' << beat.count << ' ' << beat.step << ' ' << beat.waits << ' ' << beat.meetings << ' '
      << beat.activity_ms << ' ' << (beat.left ? 1 : 0) << ' ';
  std::string texts = beat.activity + kSeparator + beat.collective;
  std::replace(texts.begin(), texts.end(), '\n', ' ');
  out << texts << '\n';
  return out.str();
}

std::optional<std::pair<int, Beat>> parse_beat_line(const std::string& line) {
  std::istringstream in(line);
  int rank = -1, left = 0;
  Beat beat;
  in >> rank >> beat.count >> beat.step >> beat.waits >> beat.meetings >> beat.activity_ms >> left;
  std::string texts;
  in.get();
  if (!in) return std::nullopt;
  std::getline(in, texts);
  const size_t separator = texts.find(kSeparator);
  if (rank < 0 || separator == std::string::npos) return std::nullopt;
  beat.left = left != 0;
  beat.activity = texts.substr(0, separator);
  beat.collective = texts.substr(separator + 1);
  return std::pair{rank, beat};
}

}  // namespace fsdp::detail
