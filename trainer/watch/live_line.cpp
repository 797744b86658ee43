#include "trainer/watch/live_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "trainer/watch/text.h"

namespace fsdp::watch {

namespace {

constexpr int kLeastBar = 8, kMostBar = 28;
constexpr int kGap = 2;
constexpr const char* kDim = "\033[2m";
constexpr const char* kCyan = "\033[36m";
constexpr const char* kPlain = "\033[0m";

// A labelled value. `rank`: values of higher rank are left out first.
struct Part {
  std::string label, value;
  int rank = 0;
  bool used = false;

  int columns() const {
    return static_cast<int>(label.size() + value.size() + (label.empty() || value.empty() ? 0 : 1));
  }
};

std::string padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string rate_text(double rate) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2e", rate);
  return text.data();
}

std::string percent_text(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f%%", share * 100);
  return text.data();
}

std::string norm_text(double norm) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), norm != 0 && (norm < 0.01 || norm >= 1000) ? "%.1e" : "%.2f", norm);
  return text.data();
}

std::string step_text(const ProgressState& state) {
  if (state.steps <= 0) return grouped(state.step);
  const std::string all = grouped(state.steps);
  return padded(grouped(state.step), all.size()) + "/" + all;
}

// In the order of the line. Values have a least width, so that the line does not flicker.
std::vector<Part> parts_of(const ProgressState& state) {
  std::vector<Part> parts{{"step", step_text(state), 0}};
  const auto add = [&](const char* label, const std::string& value, size_t width, int rank) {
    parts.push_back({label, padded(value, width), rank});
  };
  if (state.loss) add("loss", loss_text(*state.loss), 6, 1);
  if (state.learning_rate) add("lr", rate_text(*state.learning_rate), 8, 4);
  if (state.gradient_norm) add("grad norm", norm_text(*state.gradient_norm), 4, 5);
  if (state.tokens_per_second) add("tok/s", short_count(*state.tokens_per_second), 5, 3);
  if (state.mfu) add("MFU", percent_text(*state.mfu), 5, 7);
  if (state.memory_bytes) add("mem", bytes_text(static_cast<double>(*state.memory_bytes)), 8, 6);
  if (state.seconds_left) add("ETA", clock_text(*state.seconds_left), 5, 2);
  return parts;
}

// Marks the parts that fit, and returns their columns. The step always counts as fitting.
int choose(std::vector<Part>& parts, int width) {
  std::vector<Part*> by_rank;
  for (Part& one : parts) by_rank.push_back(&one);
  std::sort(by_rank.begin(), by_rank.end(), [](const Part* a, const Part* b) { return a->rank < b->rank; });
  int columns = -kGap;
  for (Part* one : by_rank) {
    if (one->rank > 0 && columns + kGap + one->columns() > width) break;
    one->used = true;
    columns += kGap + one->columns();
  }
  return columns;
}

std::string repeated(const char* text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A bar of `columns` columns, whose filled part stands for `share`.
std::string bar(double share, int columns, const LineStyle& style) {
  const int inner = style.utf8 ? columns : columns - 2;
  const int filled = std::clamp(static_cast<int>(std::floor(share * inner)), 0, inner);
  const std::string on = style.color ? kCyan : "", dim = style.color ? kDim : "",
                    off = style.color ? kPlain : "";
  if (style.utf8)
    return on + repeated("\u2501", filled) + off + dim + repeated("\u2500", inner - filled) + off;
  const bool arrow = filled > 0 && filled < inner;
  return "[" + on + std::string(static_cast<size_t>(filled - (arrow ? 1 : 0)), '=') + (arrow ? ">" : "") +
         off + std::string(static_cast<size_t>(inner - filled), ' ') + "]";
}

std::string joined(const std::vector<Part>& parts, bool color) {
  std::string line;
  for (const Part& one : parts) {
    if (!one.used) continue;
    if (!line.empty()) line += std::string(kGap, ' ');
    line += color ? kDim + one.label + kPlain : one.label;
    line += " " + one.value;
  }
  return line;
}

// The code point at `at`, which moves on. A byte that begins none stands for itself.
uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  uint32_t point = more == 0 ? first : first & (0x3fU >> more);
  for (int i = 0; i < more && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80; ++i)
    point = point << 6 | (static_cast<unsigned char>(text[at++]) & 0x3fU);
  return point;
}

// East Asian wide characters and emoji.
bool is_wide(uint32_t point) {
  return (point >= 0x1100 && point <= 0x115f) || (point >= 0x2e80 && point <= 0xa4cf) ||
         (point >= 0xac00 && point <= 0xd7a3) || (point >= 0xf900 && point <= 0xfaff) ||
         (point >= 0xfe30 && point <= 0xfe6f) || (point >= 0xff00 && point <= 0xff60) ||
         (point >= 0x1f300 && point <= 0x1faff) || (point >= 0x20000 && point <= 0x3fffd);
}

// Columns of what begins at `at`: a character or an escape sequence. `at` moves on.
int take_one(std::string_view text, size_t& at) {
  if (text[at] == '\033' && at + 1 < text.size() && text[at + 1] == '[') {
    at += 2;
    while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
    at = std::min(text.size(), at + 1);
    return 0;
  }
  const uint32_t point = next_code_point(text, at);
  const bool combining = point >= 0x300 && point <= 0x36f;
  return combining ? 0 : is_wide(point) ? 2 : 1;
}

}  // namespace

std::string live_line(const ProgressState& state, const LineStyle& style) {
  std::vector<Part> parts = parts_of(state);
  const int used = choose(parts, style.width);
  std::string line = joined(parts, style.color);
  if (used > style.width) return cut_to(line, style.width);
  const int left = style.width - used - kGap;
  if (state.steps <= 0 || left < kLeastBar) return line;
  const double share = static_cast<double>(state.step) / static_cast<double>(state.steps);
  return bar(share, std::min(left, kMostBar), style) + std::string(kGap, ' ') + line;
}

std::string plain_line(const ProgressState& state) {
  std::vector<Part> parts = parts_of(state);
  for (Part& one : parts) one.used = true;
  return joined(parts, false);
}

std::string waiting_line(const std::string& what, const std::string& since, double seconds, int width) {
  const std::string begin = "waiting for ",
                    end = " since " + since + " (" + std::to_string(std::llround(seconds)) + " s)";
  const int left = width - static_cast<int>(begin.size() + end.size());
  if (left >= std::min(columns_of(what), 12)) return begin + cut_to(what, left) + end;
  return cut_to(begin + what, width);
}

int columns_of(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += take_one(text, at);
  return columns;
}

std::string cut_to(const std::string& text, int width) {
  if (columns_of(text) <= width) return text;
  const int dots = std::clamp(width, 0, 3);
  int columns = 0;
  size_t kept = 0;
  bool styled = false;
  for (size_t at = 0; at < text.size();) {
    styled |= text[at] == '\033';
    columns += take_one(text, at);
    if (columns > width - dots) break;
    kept = at;
  }
  return text.substr(0, kept) + (styled ? kPlain : "") + std::string(static_cast<size_t>(dots), '.');
}

}  // namespace fsdp::watch
