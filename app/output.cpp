#include "app/output.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>

namespace fsdp::app {

namespace {

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

}  // namespace

Table::Table(std::vector<std::string> head, std::vector<size_t> right)
    : head_(std::move(head)), right_(std::move(right)) {}

std::string Table::text() const {
  std::vector<std::vector<std::string>> rows = rows_;
  if (!head_.empty()) rows.insert(rows.begin(), head_);
  std::vector<size_t> widths;
  for (auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = printable(row[i]);
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = std::find(right_.begin(), right_.end(), i) != right_.end();
      line += (i > 0 ? "  " : "") + padded(row[i], widths[i], right);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string size_text(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string count_text(int64_t count) {
  std::string text = std::to_string(count);
  const size_t sign = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > 3 + sign; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string counted(int64_t count, const std::string& what) {
  return count_text(count) + " " + what + (count == 1 ? "" : "s");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

void print(const std::string& text) {
  errno = 0;
  std::cout << text << std::flush;
  if (!std::cout) throw IoError("write to", "stdout", errno);
}

void print(const Json& json) { print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

ByteProgress show_progress(const std::string& doing) {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [doing, last = std::chrono::steady_clock::time_point()](int64_t done, int64_t total) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (done < total && now - last < std::chrono::milliseconds(100)) return;
    last = now;
    std::cerr << "\r\033[K";
    if (done < total) std::cerr << doing << " " << size_text(done) << " of " << size_text(total);
    std::cerr << std::flush;
  };
}

}  // namespace fsdp::app
