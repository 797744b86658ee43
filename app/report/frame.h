// The common parts of charts: the axes around the plot, paths, and the values for the pointer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/report/chart.h"

namespace fsdp::report {

using Json = nlohmann::ordered_json;

// The two axes, which map a value to a position.
struct Axes {
  Scale x, y;
};

struct Frame {
  std::string id = {}, title = {}, label = {};  // `label`: the chart in one sentence, for screen readers
  Unit unit = Unit::number;
  std::string key = {};      // the legend
  std::string drawing = {};  // what stands in the <svg>
  std::string marks = {};    // HTML upon it
  Json hover = {};
};

// Position in the viewBox, with one digit behind the point. Down is up: y of the SVG grows downwards.
std::string svg_x(const Axes& axes, double x);
std::string svg_y(const Axes& axes, double y);
// A position as a percentage of a style.
std::string percent(double position);

// The whole <figure>.
std::string frame(const Frame& content, const Axes& axes);

}  // namespace fsdp::report
