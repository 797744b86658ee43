#include "trainer/watch/text.h"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace fsdp::watch {

namespace {

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  std::array<char, 96> text{};
  va_list values;
  va_start(values, format);
  std::vsnprintf(text.data(), text.size(), format, values);
  va_end(values);
  return text.data();
}

// Three significant digits of a number below 10,000.
std::string three_digits(double value) {
  const double size = std::fabs(value);
  return formatted(size < 9.995 ? "%.2f" : size < 99.95 ? "%.1f" : "%.0f", value);
}

template <size_t N>
std::string scaled(double value, double base, const std::array<const char*, N>& units) {
  if (!std::isfinite(value)) return loss_text(value);
  size_t unit = 0;
  for (; std::fabs(value) >= base - 0.5 && unit + 1 < units.size(); ++unit) value /= base;
  return (unit == 0 ? formatted("%.0f", value) : three_digits(value)) + units[unit];
}

}  // namespace

std::string short_count(double count) {
  static constexpr std::array<const char*, 5> kUnits{"", "k", "M", "B", "T"};
  return scaled(count, 1000, kUnits);
}

std::string grouped(int64_t count) {
  std::string text = std::to_string(count);
  const size_t sign = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > 3 + sign; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 6> kUnits{" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, kUnits);
}

std::string clock_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e12) return "?";
  const auto all = static_cast<long long>(std::llround(seconds));
  const long long days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60;
  if (days > 0) return formatted("%lldd %02lld:%02lld", days, hours, minutes);
  if (hours > 0) return formatted("%lld:%02lld:%02lld", hours, minutes, all % 60);
  return formatted("%lld:%02lld", minutes, all % 60);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return loss_text(seconds);
  const double size = std::fabs(seconds);
  if (size >= 100) return formatted("%.0f s", seconds);
  if (size >= 0.9995 || size == 0) return three_digits(seconds) + " s";
  if (size >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "nan";
  if (std::isinf(loss)) return loss > 0 ? "inf" : "-inf";
  const double size = std::fabs(loss);
  if (size != 0 && (size < 1e-3 || size >= 1e5)) return formatted("%.3e", loss);
  return formatted(size < 10 ? "%.4f" : size < 100 ? "%.3f" : size < 1000 ? "%.2f" : "%.1f", loss);
}

}  // namespace fsdp::watch
