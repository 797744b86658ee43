// Series of points, and what makes them few enough to draw.
#pragma once

#include <cstddef>
#include <vector>

namespace fsdp::report {

struct Point {
  double x = 0, y = 0;
};

// At most about 2 x `buckets` of `points`, which are in the order of x. Each bucket of neighbours keeps its
// lowest and its highest point, so that every spike is seen. The first and the last point are kept.
std::vector<Point> thin(const std::vector<Point>& points, size_t buckets);

// The points whose y is finite, and the x of the others.
struct Finite {
  std::vector<Point> points = {};
  std::vector<double> bad = {};
};
Finite split_finite(const std::vector<Point>& points);

// The mean of two exponential moving averages over about `window` points, one from each end: it does not lag
// behind the points. All y are finite.
std::vector<Point> smooth(const std::vector<Point>& points, size_t window);

// Every n-th of `values`, so that there are at most `most`. The first is kept.
std::vector<double> some_of(const std::vector<double>& values, size_t most);

}  // namespace fsdp::report
