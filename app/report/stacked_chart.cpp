#include <algorithm>
#include <cmath>

#include "app/report/frame.h"
#include "app/report/html.h"

namespace fsdp::report {

namespace {

constexpr size_t kMostBars = 160;
constexpr size_t kColors = 8;

// Neighbouring steps, whose values are averaged.
struct Bars {
  std::vector<double> left = {}, right = {}, step = {};  // edges on the axis; the middle step
  std::vector<std::vector<double>> values = {};          // [names, bars]
};

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += std::isfinite(values[i]) ? values[i] : 0;
  return sum / static_cast<double>(end - begin);
}

// The edge between two steps is half way; the first and the last bar are as wide inside as outside.
double edge(const std::vector<double>& steps, size_t i) {
  if (steps.size() == 1) return steps[0] + (i == 0 ? -0.5 : 0.5);
  if (i == 0) return steps[0] - (steps[1] - steps[0]) / 2;
  if (i == steps.size()) return steps[i - 1] + (steps[i - 1] - steps[i - 2]) / 2;
  return (steps[i - 1] + steps[i]) / 2;
}

Bars bars_of(const StackedChart& chart) {
  const size_t count = std::min(kMostBars, chart.steps.size());
  Bars bars;
  bars.values.resize(chart.names.size());
  for (size_t bar = 0; bar < count; ++bar) {
    const size_t begin = bar * chart.steps.size() / count, end = (bar + 1) * chart.steps.size() / count;
    bars.left.push_back(edge(chart.steps, begin));
    bars.right.push_back(edge(chart.steps, end));
    bars.step.push_back(chart.steps[(begin + end - 1) / 2]);
    for (size_t name = 0; name < chart.names.size(); ++name)
      bars.values[name].push_back(mean(chart.values[name], begin, end));
  }
  return bars;
}

std::vector<double> totals(const Bars& bars) {
  std::vector<double> totals(bars.step.size(), 0.0);
  for (const auto& values : bars.values)
    for (size_t bar = 0; bar < values.size(); ++bar) totals[bar] += values[bar];
  return totals;
}

std::string drawing_of(const Bars& bars, const Axes& axes) {
  std::string html;
  std::vector<double> below(bars.step.size(), 0.0);
  for (size_t name = 0; name < bars.values.size(); ++name) {
    std::string path;
    for (size_t bar = 0; bar < below.size(); ++bar) {
      const double value = bars.values[name][bar];
      if (value <= 0) continue;
      path += "M" + svg_x(axes, bars.left[bar]) + " " + svg_y(axes, below[bar]) + "V" +
              svg_y(axes, below[bar] + value) + "H" + svg_x(axes, bars.right[bar]) + "V" +
              svg_y(axes, below[bar]) + "z";
      below[bar] += value;
    }
    html += "<path class=\"fill " + color_of(name) + "\" d=\"" + path + "\"/>\n";
  }
  return html;
}

Json hover_of(const Bars& bars, const StackedChart& chart, const Axes& axes) {
  Json series = Json::array();
  std::vector<double> below(bars.step.size(), 0.0);
  for (size_t name = 0; name < chart.names.size(); ++name) {
    Json one = {{"name", clean_utf8(chart.names[name])}, {"color", color_of(name)}};
    Json& points = one["points"] = Json::array();
    for (size_t bar = 0; bar < below.size(); ++bar) {
      below[bar] += bars.values[name][bar];
      points.push_back({static_cast<int64_t>(bars.step[bar]),
                        std::round(axes.x.position((bars.left[bar] + bars.right[bar]) / 2) * 1e4) / 1e4,
                        std::round((1 - axes.y.position(below[bar])) * 1e4) / 1e4,
                        value_text(bars.values[name][bar], chart.unit)});
    }
    series.push_back(std::move(one));
  }
  return series;
}

}  // namespace

std::string color_of(size_t i) { return "c" + std::to_string(i % kColors + 1); }

std::string legend(const std::vector<std::string>& names) {
  std::string html = "<ul class=\"key\">";
  for (size_t i = 0; i < names.size(); ++i)
    html += "<li><i class=\"" + color_of(i) + "\"></i>" + escaped(names[i]) + "</li>";
  return html + "</ul>";
}

std::string draw(const StackedChart& chart) {
  if (chart.steps.empty() || chart.names.empty()) return "";
  const Bars bars = bars_of(chart);
  const Axes axes{Scale({bars.left.front(), bars.right.back()}), Scale(range_of(totals(bars), true))};
  Frame content{.id = chart.id, .title = chart.title, .label = chart.title, .unit = chart.unit};
  for (const std::string& name : chart.names) content.label += (name == chart.names[0] ? ": " : ", ") + name;
  content.drawing = drawing_of(bars, axes);
  content.key = legend(chart.names);
  content.hover = hover_of(bars, chart, axes);
  return frame(content, axes);
}

std::string draw_bar(const std::vector<std::string>& names, const std::vector<double>& values, double whole,
                     Unit unit) {
  std::string html = "<div class=\"bar\">";
  for (size_t i = 0; i < names.size(); ++i)
    if (values[i] > 0 && whole > 0)
      html += "<span class=\"" + color_of(i) +
              "\" style=\"width:" + percent(std::min(1.0, values[i] / whole)) + "\" title=\"" +
              escaped(names[i] + ": " + value_text(values[i], unit)) + "\"></span>";
  return html + "</div>";
}

}  // namespace fsdp::report
