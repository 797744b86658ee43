// Charts as HTML: an SVG that takes any width, with axes beside it as text.
#pragma once

#include <string>
#include <vector>

#include "app/report/points.h"
#include "app/report/scale.h"

namespace fsdp::report {

// Note [Charts]
// The SVG of a chart has a fixed viewBox and stretches to the width of the page, with lines that keep their
// thickness. Text would be stretched too, so axes, marks and the legend are HTML placed by percentages. A
// chart is readable without the script; its points lie beside it as JSON, for the values shown under the
// pointer.

struct Line {
  std::string name = {};   // in the legend
  std::string color = {};  // a class of the style sheet: "c1" to "c8"
  std::vector<Point> points = {};
  bool dots = false;      // each point is drawn as a dot too
  bool smoothed = false;  // long lines are drawn faint, with their average above
};

// A vertical line at a step.
struct StepMark {
  double step = 0;
  std::string text = {};
};

struct LineChart {
  std::string id = {}, title = {};
  Unit unit = Unit::number;
  bool from_zero = false;
  Range steps = {};
  std::vector<Line> lines = {};
  std::vector<StepMark> resumes = {};
  std::vector<double> skipped = {};  // steps that were not applied
};

// Points that are not finite are marked at the top. Empty if there is no point at all.
std::string draw(const LineChart& chart);

// Shares of a whole over the steps, one upon the other.
struct StackedChart {
  std::string id = {}, title = {};
  Unit unit = Unit::seconds;
  std::vector<std::string> names = {};
  std::vector<double> steps = {};                // rising
  std::vector<std::vector<double>> values = {};  // [names, steps]
};

// Bars, each the mean of neighbouring steps. Empty if there is no step.
std::string draw(const StackedChart& chart);

// A bar whose parts are shares of `whole`: [names].
std::string draw_bar(const std::vector<std::string>& names, const std::vector<double>& values, double whole,
                     Unit unit);

// The class of the i-th colour.
std::string color_of(size_t i);
// The legend of a chart with these names, in the order of the colours.
std::string legend(const std::vector<std::string>& names);

}  // namespace fsdp::report
