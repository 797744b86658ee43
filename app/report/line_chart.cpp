#include <algorithm>
#include <cmath>

#include "app/report/frame.h"
#include "app/report/html.h"
#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

constexpr size_t kBuckets = 400;       // of a thinned line: two points each
constexpr size_t kMostMarks = 60;      // of a kind
constexpr size_t kLeastToSmooth = 60;  // points

struct DrawnLine {
  const Line* line = nullptr;
  std::vector<Point> points = {}, average = {};
  std::vector<double> bad = {};
};

DrawnLine prepare(const Line& line) {
  const Finite split = split_finite(line.points);
  DrawnLine drawn{&line, thin(split.points, kBuckets), {}, split.bad};
  if (line.smoothed && split.points.size() >= kLeastToSmooth)
    drawn.average = thin(smooth(split.points, split.points.size() / 40), kBuckets);
  return drawn;
}

// A line breaks where points that are not finite lie between its own.
std::string path_of(const std::vector<Point>& points, const std::vector<double>& breaks, const Axes& axes) {
  std::string path;
  for (size_t i = 0; i < points.size(); ++i) {
    const bool begins = i == 0 || std::upper_bound(breaks.begin(), breaks.end(), points[i - 1].x) !=
                                      std::upper_bound(breaks.begin(), breaks.end(), points[i].x);
    path += (begins ? "M" : "L") + svg_x(axes, points[i].x) + " " + svg_y(axes, points[i].y) +
            (begins ? "h0" : "");
  }
  return path;
}

std::string drawing_of(const DrawnLine& drawn, const Axes& axes) {
  const auto path = [&](const std::vector<Point>& points, const std::string& style) {
    return "<path class=\"line " + drawn.line->color + style + "\" d=\"" + path_of(points, drawn.bad, axes) +
           "\"/>\n";
  };
  std::string html = path(drawn.points, drawn.average.empty() ? "" : " faint");
  if (!drawn.average.empty()) html += path(drawn.average, "");
  if (!drawn.line->dots) return html;
  std::string dots;
  for (const Point& one : drawn.points) dots += "M" + svg_x(axes, one.x) + " " + svg_y(axes, one.y) + "h0";
  return html + "<path class=\"dots " + drawn.line->color + "\" d=\"" + dots + "\"/>\n";
}

std::string mark(const char* kind, double step, const std::string& text, const Axes& axes) {
  return std::string("<b class=\"") + kind + "\" style=\"left:" + percent(axes.x.position(step)) +
         "\" title=\"" + escaped("step " + watch::grouped(static_cast<int64_t>(step)) + ": " + text) +
         "\"></b>";
}

// The value of a point that is not finite.
double value_at(const Line& line, double step) {
  const auto found = std::find_if(line.points.begin(), line.points.end(), [step](const Point& one) {
    return one.x == step && !std::isfinite(one.y);
  });
  return found == line.points.end() ? NAN : found->y;
}

std::string marks_of(const LineChart& chart, const std::vector<DrawnLine>& lines, const Axes& axes) {
  std::string html;
  for (const StepMark& resume : chart.resumes) html += mark("resume", resume.step, resume.text, axes);
  for (const double step : some_of(chart.skipped, kMostMarks))
    html += mark("skipped", step, "the update was skipped", axes);
  for (const DrawnLine& drawn : lines)
    for (const double step : some_of(drawn.bad, kMostMarks))
      html += mark("bad", step, drawn.line->name + " " + watch::loss_text(value_at(*drawn.line, step)), axes);
  return html;
}

std::string key_of(const LineChart& chart, const std::vector<DrawnLine>& lines) {
  std::string html;
  size_t bad = 0;
  for (const DrawnLine& drawn : lines) {
    bad += drawn.bad.size();
    if (lines.size() > 1 || !drawn.average.empty())
      html += "<li><i class=\"" + drawn.line->color + "\"></i>" + escaped(drawn.line->name) +
              (drawn.average.empty() ? "" : " <small>and its average</small>") + "</li>";
  }
  const auto add = [&](const char* kind, const std::string& text) {
    html += std::string("<li><u class=\"") + kind + "\"></u>" + text + "</li>";
  };
  if (!chart.resumes.empty()) add("resume", "resumed");
  if (!chart.skipped.empty()) add("skipped", std::to_string(chart.skipped.size()) + " skipped");
  if (bad > 0) add("bad", std::to_string(bad) + " not finite");
  return html.empty() ? "" : "<ul class=\"key\">" + html + "</ul>";
}

Json hover_of(const std::vector<DrawnLine>& lines, Unit unit, const Axes& axes) {
  Json series = Json::array();
  for (const DrawnLine& drawn : lines) {
    Json one = {{"name", clean_utf8(drawn.line->name)}, {"color", drawn.line->color}};
    Json& points = one["points"] = Json::array();  // [step, x, y, text]
    for (const Point& point : drawn.points)
      points.push_back({static_cast<int64_t>(point.x), std::round(axes.x.position(point.x) * 1e4) / 1e4,
                        std::round((1 - axes.y.position(point.y)) * 1e4) / 1e4, value_text(point.y, unit)});
    series.push_back(std::move(one));
  }
  return series;
}

std::string label_of(const LineChart& chart, const std::vector<DrawnLine>& lines) {
  std::string label = chart.title + " over the steps";
  for (const DrawnLine& drawn : lines)
    if (!drawn.points.empty())
      label += (drawn.line == lines[0].line ? ": " : "; ") + drawn.line->name + " from " +
               value_text(drawn.points.front().y, chart.unit) + " to " +
               value_text(drawn.points.back().y, chart.unit);
  return label;
}

}  // namespace

std::string draw(const LineChart& chart) {
  std::vector<DrawnLine> lines;
  std::vector<double> values;
  for (const Line& line : chart.lines) {
    if (line.points.empty()) continue;
    lines.push_back(prepare(line));
    for (const Point& one : lines.back().points) values.push_back(one.y);
  }
  if (lines.empty()) return "";
  const Axes axes{Scale(chart.steps), scale_for(values, chart.from_zero)};
  Frame content{.id = chart.id, .title = chart.title, .label = label_of(chart, lines), .unit = chart.unit};
  for (const DrawnLine& line : lines) content.drawing += drawing_of(line, axes);
  content.key = key_of(chart, lines);
  content.marks = marks_of(chart, lines, axes);
  content.hover = hover_of(lines, chart.unit, axes);
  return frame(content, axes);
}

}  // namespace fsdp::report
