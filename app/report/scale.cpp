#include "app/report/scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

constexpr double kSpace = 0.06;      // of the range, above and below the values
constexpr double kSpreadOfLog = 25;  // highest value to median

std::string formatted(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// "3e-04" as "3e-4".
std::string short_exponent(std::string text) {
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const size_t sign = text[e + 1] == '-' ? 1 : 0;
  size_t digits = e + 2;
  while (digits + 1 < text.size() && text[digits] == '0') ++digits;
  return text.substr(0, e + 1) + (sign != 0 ? "-" : "") + text.substr(digits);
}

// 1, 2 or 5 times a power of ten, at least `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (power * factor >= least * (1 - 1e-9)) return power * factor;
  return power * 10;
}

// The factor by which numbers up to `high` are divided before they are written, and what follows them.
std::pair<double, const char*> written_in(double high, Unit unit) {
  using Factors = std::vector<std::pair<double, const char*>>;
  static const Factors kCounts = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};
  static const Factors kBytes = {
      {0x1p40, " TiB"}, {0x1p30, " GiB"}, {0x1p20, " MiB"}, {0x1p10, " KiB"}, {1, " B"}};
  static const Factors kSeconds = {{1, " s"}, {1e-3, " ms"}, {1e-6, " us"}};
  static const Factors kNone;
  const Factors& factors = unit == Unit::count     ? kCounts
                           : unit == Unit::bytes   ? kBytes
                           : unit == Unit::seconds ? kSeconds
                                                   : kNone;
  for (const auto& factor : factors)
    if (high >= factor.first) return factor;
  return {1, unit == Unit::seconds ? " s" : unit == Unit::bytes ? " B" : ""};
}

std::string tick_text(double value, double step, const char* unit) {
  if (value == 0) return "0";
  const double size = std::max(std::fabs(value), step);
  if (size >= 1e6 || step < 1e-3) return short_exponent(formatted("%.3g", value)) + unit;
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 6);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data() + std::string(unit);
}

std::vector<Tick> linear_ticks(Range range, Unit unit, int most) {
  const auto [factor, suffix] = written_in(std::max(std::fabs(range.low), std::fabs(range.high)), unit);
  const double low = range.low / factor, high = range.high / factor;
  const double step = round_step((high - low) / most);
  std::vector<Tick> ticks;
  for (double at = std::ceil(low / step - 1e-9); at * step <= high * (1 + 1e-12) + step * 1e-9; ++at) {
    const double value = at == 0 ? 0 : at * step;
    ticks.push_back({value * factor, tick_text(value, step, suffix)});
    if (static_cast<int>(ticks.size()) > 2 * most) break;
  }
  return ticks;
}

std::vector<Tick> logarithmic_ticks(Range range, Unit unit, int most) {
  const double decades = std::log10(range.high / range.low);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / most)));
  const std::vector<double> factors = decades < 1.5 ? std::vector{1.0, 2.0, 5.0} : std::vector{1.0};
  std::vector<Tick> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(range.low))); std::pow(10, power) <= range.high;
       power += every)
    for (const double factor : factors) {
      const double value = factor * std::pow(10, power);
      if (value < range.low || value > range.high) continue;
      const auto [divisor, suffix] = written_in(value, unit);
      ticks.push_back({value, short_exponent(formatted("%.3g", value / divisor)) + suffix});
    }
  return ticks;
}

}  // namespace

Scale::Scale(Range range, Kind kind) : range_(range), kind_(kind) {
  constexpr double kMost = 1e300;  // so that differences of two ends are finite
  range_.low = std::isfinite(range_.low) ? std::clamp(range_.low, -kMost, kMost) : 0;
  range_.high = std::isfinite(range_.high) ? std::clamp(range_.high, -kMost, kMost) : 1;
  const double size = std::max(std::fabs(range_.low), std::fabs(range_.high));
  if (range_.high - range_.low <= size * 1e-12 || range_.high <= range_.low) {
    const double half = size > 0 ? size * 0.05 : 0.5;
    range_ = {range_.low - half, range_.low + half};
  }
  if (kind_ == Kind::logarithmic && range_.low <= 0) kind_ = Kind::linear;
}

double Scale::position(double value) const {
  if (std::isnan(value)) return 0;
  if (kind_ == Kind::linear) return std::clamp((value - range_.low) / (range_.high - range_.low), 0.0, 1.0);
  if (value <= range_.low) return 0;
  return std::clamp(std::log(value / range_.low) / std::log(range_.high / range_.low), 0.0, 1.0);
}

std::vector<Tick> Scale::ticks(Unit unit, int most) const {
  return kind_ == Kind::linear ? linear_ticks(range_, unit, most) : logarithmic_ticks(range_, unit, most);
}

Range range_of(const std::vector<double>& values, bool from_zero) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double value : values)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (low > high) return {0, 1};
  if (from_zero && low >= 0) return {0, high > 0 ? high * (1 + kSpace) : 1};
  const double space = (high / 2 - low / 2) * 2 * kSpace;
  return {low - space, high + space};
}

Scale scale_for(const std::vector<double>& values, bool from_zero) {
  std::vector<double> finite;
  for (const double value : values)
    if (std::isfinite(value)) finite.push_back(value);
  if (!finite.empty()) {
    std::sort(finite.begin(), finite.end());
    const double low = finite.front(), high = finite.back(), median = finite[finite.size() / 2];
    if (low > 0 && high / median > kSpreadOfLog)
      return Scale({low / 1.2, high * 1.2}, Scale::Kind::logarithmic);
  }
  return Scale(range_of(values, from_zero));
}

std::string value_text(double value, Unit unit) {
  switch (unit) {
    case Unit::rate:
      return std::isfinite(value) ? short_exponent(formatted("%.2e", value)) : watch::loss_text(value);
    case Unit::count:
      return watch::short_count(value);
    case Unit::bytes:
      return watch::bytes_text(value);
    case Unit::seconds:
      return watch::seconds_text(value);
    case Unit::number:
      break;
  }
  return watch::loss_text(value);
}

}  // namespace fsdp::report
