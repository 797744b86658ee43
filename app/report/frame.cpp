#include "app/report/frame.h"

#include "app/report/html.h"

namespace fsdp::report {

namespace {

constexpr double kBox = 1000;  // width and height of the viewBox
constexpr int kTicksOfX = 5, kTicksOfY = 5;

std::string grid(const std::vector<Tick>& ticks, const Axes& axes) {
  std::string path;
  for (const Tick& tick : ticks) path += "M0 " + svg_y(axes, tick.value) + "H1000";
  return path.empty() ? "" : "<path class=\"grid\" d=\"" + path + "\"/>";
}

std::string labels_of_y(const std::vector<Tick>& ticks, const Axes& axes) {
  std::string html = "<div class=\"y\">";
  for (const Tick& tick : ticks)
    html += "<span style=\"top:" + percent(1 - axes.y.position(tick.value)) + "\">" + escaped(tick.text) +
            "</span>";
  return html + "</div>";
}

// Steps are whole: other ticks are left out.
std::string labels_of_x(const Axes& axes) {
  std::string html = "<div class=\"x\">";
  for (const Tick& tick : axes.x.ticks(Unit::count, kTicksOfX)) {
    if (tick.value != static_cast<double>(static_cast<int64_t>(tick.value))) continue;
    html +=
        "<span style=\"left:" + percent(axes.x.position(tick.value)) + "\">" + escaped(tick.text) + "</span>";
  }
  return html + "<em>step</em></div>";
}

}  // namespace

std::string svg_x(const Axes& axes, double x) { return short_decimal(kBox * axes.x.position(x)); }
std::string svg_y(const Axes& axes, double y) { return short_decimal(kBox * (1 - axes.y.position(y))); }
std::string percent(double position) { return short_decimal(100 * position) + "%"; }

std::string frame(const Frame& content, const Axes& axes) {
  const std::vector<Tick> ticks = axes.y.ticks(content.unit, kTicksOfY);
  const bool logarithmic = axes.y.kind() == Scale::Kind::logarithmic;
  return "<figure class=\"chart\" id=\"" + escaped(content.id) + "\">\n<figcaption><h3>" +
         escaped(content.title) + (logarithmic ? " <small>log scale</small>" : "") + "</h3>" + content.key +
         "</figcaption>\n" + "<div class=\"plot\">" + labels_of_y(ticks, axes) +
         "<div class=\"area\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"" +
         escaped(content.label) + "\">\n" + grid(ticks, axes) + content.drawing + "</svg>" + content.marks +
         "</div>" + labels_of_x(axes) + "</div>\n<script type=\"application/json\">" +
         for_script(content.hover.dump(-1, ' ', false, Json::error_handler_t::replace)) +
         "</script>\n</figure>\n";
}

}  // namespace fsdp::report
