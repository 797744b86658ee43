#include "app/report/points.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

namespace fsdp::report {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Point> line(size_t count) {
  std::vector<Point> points;
  for (size_t i = 0; i < count; ++i) points.push_back({static_cast<double>(i), static_cast<double>(i)});
  return points;
}

TEST(Points, ThinKeepsFewPointsAsTheyAre) {
  EXPECT_THAT(thin(line(20), 10), SizeIs(20));
  EXPECT_THAT(thin({}, 10), IsEmpty());
}

TEST(Points, ThinKeepsSpikesAndEnds) {
  std::vector<Point> points = line(10000);
  points[4321].y = 1e6;
  points[4322].y = -1e6;
  const std::vector<Point> kept = thin(points, 100);
  EXPECT_LE(kept.size(), 202U);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 9999);
  const auto has = [&](double y) {
    return std::any_of(kept.begin(), kept.end(), [y](const Point& one) { return one.y == y; });
  };
  EXPECT_TRUE(has(1e6));
  EXPECT_TRUE(has(-1e6));
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](auto& a, auto& b) { return a.x < b.x; }));
}

TEST(Points, SplitSeparatesWhatIsNotFinite) {
  const Finite split = split_finite({{1, 2}, {2, NAN}, {3, INFINITY}, {4, 5}});
  EXPECT_THAT(split.points, SizeIs(2));
  EXPECT_THAT(split.bad, ElementsAre(2, 3));
}

TEST(Points, SmoothKeepsAConstantAndDoesNotLag) {
  std::vector<Point> flat = line(50);
  for (Point& one : flat) one.y = 3;
  for (const Point& one : smooth(flat, 10)) EXPECT_NEAR(one.y, 3, 1e-12);
  // In the middle of a straight line as many points lie above as below.
  EXPECT_NEAR(smooth(line(1001), 20)[500].y, 500, 1e-9);
}

TEST(Points, SmoothTakesNoiseAway) {
  std::vector<Point> noisy = line(400);
  for (size_t i = 0; i < noisy.size(); ++i) noisy[i].y = i % 2 == 0 ? 1 : -1;
  const std::vector<Point> smoothed = smooth(noisy, 40);
  EXPECT_LT(std::fabs(smoothed[200].y), 0.1);
}

TEST(Points, SomeOfKeepsTheFirst) {
  EXPECT_THAT(some_of({1, 2, 3}, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(some_of({1, 2, 3, 4, 5}, 2), ElementsAre(1, 4));
  EXPECT_THAT(some_of({}, 2), IsEmpty());
}

}  // namespace
}  // namespace fsdp::report
