#include "app/report/scale.h"

#include <gmock/gmock.h>

#include <cmath>

namespace fsdp::report {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> texts(const Scale& scale, Unit unit, int most = 5) {
  std::vector<std::string> all;
  for (const Tick& tick : scale.ticks(unit, most)) all.push_back(tick.text);
  return all;
}

TEST(Scale, PositionsAreSharesOfTheRange) {
  const Scale linear({10, 30});
  EXPECT_EQ(linear.position(10), 0);
  EXPECT_EQ(linear.position(25), 0.75);
  EXPECT_EQ(linear.position(99), 1) << "outside: the nearest end";
  EXPECT_EQ(linear.position(NAN), 0);
  const Scale logarithmic({1, 10000}, Scale::Kind::logarithmic);
  EXPECT_DOUBLE_EQ(logarithmic.position(100), 0.5);
  EXPECT_EQ(logarithmic.position(-5), 0);
}

TEST(Scale, ARangeOfOneValueIsWidened) {
  for (const double value : {0.0, 5.0, -5.0, 1e300}) {
    const Scale scale({value, value});
    EXPECT_LT(scale.range().low, scale.range().high) << value;
    EXPECT_NEAR(scale.position(value), 0.5, 1e-9) << value;
    EXPECT_THAT(scale.ticks(Unit::number, 5), Not(IsEmpty())) << value;
  }
  EXPECT_LT(Scale({NAN, INFINITY}).range().low, 1);
}

TEST(Scale, TicksAreRoundNumbersWithUnits) {
  EXPECT_THAT(texts(Scale({0, 10}), Unit::number), ElementsAre("0", "2", "4", "6", "8", "10"));
  EXPECT_THAT(texts(Scale({0, 0.25}), Unit::number, 3), ElementsAre("0", "0.1", "0.2"));
  EXPECT_THAT(texts(Scale({1.9, 2.6}), Unit::number), ElementsAre("2.0", "2.2", "2.4", "2.6"));
  EXPECT_THAT(texts(Scale({0, 20000}), Unit::count), ElementsAre("0", "5k", "10k", "15k", "20k"));
  EXPECT_THAT(texts(Scale({0, 3 << 20}), Unit::bytes, 3), ElementsAre("0", "1 MiB", "2 MiB", "3 MiB"));
  EXPECT_THAT(texts(Scale({0, 0.25}), Unit::seconds, 3), ElementsAre("0", "100 ms", "200 ms"));
  EXPECT_EQ(Scale({0, 3 << 20}).ticks(Unit::bytes, 3)[2].value, 2 << 20) << "where 2 MiB is drawn";
  EXPECT_THAT(texts(Scale({1, 1000}, Scale::Kind::logarithmic), Unit::number),
              ElementsAre("1", "10", "100", "1e3"));
}

TEST(Scale, TicksLieWithinTheRangeAndRise) {
  for (const double low : {-3.7, 0.0, 1e-9, 12345.0})
    for (const double size : {1e-12, 0.3, 7.0, 1e9}) {
      const Scale scale({low, low + size});
      double last = -HUGE_VAL;
      for (const Tick& tick : scale.ticks(Unit::number, 5)) {
        EXPECT_GE(tick.value, scale.range().low - size * 1e-6);
        EXPECT_LE(tick.value, scale.range().high + size * 1e-6);
        EXPECT_GT(tick.value, last);
        last = tick.value;
      }
    }
}

TEST(Scale, RangeLeavesSpaceAroundTheValues) {
  EXPECT_NEAR(range_of({0, 10}, false).low, -0.6, 1e-12);
  EXPECT_NEAR(range_of({0, 10}, false).high, 10.6, 1e-12);
  EXPECT_EQ(range_of({4, 10}, true).low, 0);
  EXPECT_LT(range_of({-4, 10}, true).low, -4);
  EXPECT_EQ(range_of({NAN, INFINITY}, false).high, 1);
}

TEST(Scale, IsLogarithmicOnlyForAFewHighValues) {
  EXPECT_EQ(scale_for({1, 1, 1, 1, 1000}, false).kind(), Scale::Kind::logarithmic);
  EXPECT_EQ(scale_for({1, 2, 3}, false).kind(), Scale::Kind::linear);
  EXPECT_EQ(scale_for({0, 1, 1, 1, 1000}, false).kind(), Scale::Kind::linear) << "0 has no logarithm";
  EXPECT_EQ(scale_for({}, false).kind(), Scale::Kind::linear);
}

TEST(Scale, ValuesAsText) {
  EXPECT_EQ(value_text(3e-4, Unit::rate), "3.00e-4");
  EXPECT_EQ(value_text(12345, Unit::count), "12.3k");
  EXPECT_EQ(value_text(1.5 * (1 << 30), Unit::bytes), "1.50 GiB");
  EXPECT_EQ(value_text(0.00125, Unit::seconds), "1.25 ms");
  EXPECT_EQ(value_text(2.34567, Unit::number), "2.3457");
  EXPECT_EQ(value_text(NAN, Unit::rate), "nan");
}

}  // namespace
}  // namespace fsdp::report
