// The axes of charts: where a value lies, and the round numbers beside it.
#pragma once

#include <string>
#include <vector>

namespace fsdp::report {

// The unit of an axis, which decides how its numbers are written.
enum class Unit { number, rate, count, bytes, seconds };

struct Range {
  double low = 0, high = 1;
};

struct Tick {
  double value = 0;
  std::string text = {};
};

// Maps values to 0 (the low end) to 1. Pure. Values outside of the range, and ones that a logarithmic scale
// cannot show, are put to the nearest end.
class Scale {
 public:
  enum class Kind { linear, logarithmic };

  // A range of one value, or one that is not finite, is widened. Logarithmic: its low end is above 0.
  Scale(Range range, Kind kind = Kind::linear);

  double position(double value) const;
  // At most about `most` round numbers within the range, rising. Never empty for a linear scale.
  std::vector<Tick> ticks(Unit unit, int most) const;

  Range range() const { return range_; }
  Kind kind() const { return kind_; }

 private:
  Range range_;
  Kind kind_;
};

// The finite numbers of `values` and some space around them; from 0 if `from_zero` and none is negative.
Range range_of(const std::vector<double>& values, bool from_zero);

// A logarithmic scale, if all finite values are above 0 and the highest is far above most of them.
Scale scale_for(const std::vector<double>& values, bool from_zero);

// `value` with its unit, for people: "2.3451", "3.00e-4", "12.3k", "1.50 GiB", "1.25 ms".
std::string value_text(double value, Unit unit);

}  // namespace fsdp::report
