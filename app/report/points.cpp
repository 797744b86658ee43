#include "app/report/points.h"

#include <algorithm>
#include <cmath>

namespace fsdp::report {

std::vector<Point> thin(const std::vector<Point>& points, size_t buckets) {
  if (points.size() <= 2 * buckets || buckets == 0) return points;
  std::vector<Point> kept{points.front()};
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(bucket * points.size() / buckets);
    const auto end = points.begin() + static_cast<ptrdiff_t>((bucket + 1) * points.size() / buckets);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    for (const Point& one : {*low, *high})
      if (one.x > kept.back().x) kept.push_back(one);
  }
  if (points.back().x > kept.back().x) kept.push_back(points.back());
  return kept;
}

Finite split_finite(const std::vector<Point>& points) {
  Finite split;
  for (const Point& one : points) {
    if (std::isfinite(one.y))
      split.points.push_back(one);
    else
      split.bad.push_back(one.x);
  }
  return split;
}

namespace {

// Averages over a point and the ones before it in this direction.
template <typename Iterator>
void average(Iterator begin, Iterator end, double share) {
  double sum = 0, weight = 0;  // corrected for the start, as Adam's moments are
  for (; begin != end; ++begin) {
    sum += share * (begin->y - sum);
    weight += share * (1 - weight);
    begin->y = sum / weight;
  }
}

}  // namespace

std::vector<Point> smooth(const std::vector<Point>& points, size_t window) {
  std::vector<Point> forward = points, backward = points;
  const double share = 2.0 / (static_cast<double>(window) + 1);
  average(forward.begin(), forward.end(), share);
  average(backward.rbegin(), backward.rend(), share);
  for (size_t i = 0; i < forward.size(); ++i) forward[i].y = (forward[i].y + backward[i].y) / 2;
  return forward;
}

std::vector<double> some_of(const std::vector<double>& values, size_t most) {
  const size_t every = most == 0 ? 1 : (values.size() + most - 1) / most;
  if (every <= 1) return values;
  std::vector<double> some;
  for (size_t i = 0; i < values.size(); i += every) some.push_back(values[i]);
  return some;
}

}  // namespace fsdp::report
