#include <algorithm>
#include <array>
#include <cmath>

#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/sections.h"
#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

using watch::RunMetrics;
using watch::StepRecord;

constexpr std::array<double watch::StepTimes::*, 6> kUses = {
    &watch::StepTimes::data,      &watch::StepTimes::forward,    &watch::StepTimes::backward,
    &watch::StepTimes::optimizer, &watch::StepTimes::checkpoint, &watch::StepTimes::waiting};
const std::vector<std::string> kUseNames = {"data",       "forward", "backward", "optimizer",
                                            "checkpoint", "waiting", "other"};

template <typename Value>
std::vector<Point> points_of(const RunMetrics& metrics, Value value) {
  std::vector<Point> points;
  for (const StepRecord& step : metrics.steps)
    points.push_back({static_cast<double>(step.step), value(step)});
  return points;
}

Range steps_of(const RunMetrics& metrics) {
  std::vector<double> all;
  for (const StepRecord& step : metrics.steps) all.push_back(static_cast<double>(step.step));
  for (const watch::EvalRecord& eval : metrics.evals) all.push_back(static_cast<double>(eval.step));
  if (all.empty()) return {};
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  return {*low, *high};
}

// A chart without lines, with the marks that all charts have.
LineChart chart_of(const RunMetrics& metrics, const char* id, const char* title, Unit unit) {
  LineChart chart{.id = id, .title = title, .unit = unit, .steps = steps_of(metrics)};
  for (const watch::ResumeRecord& resume : metrics.resumes)
    if (static_cast<double>(resume.step) >= chart.steps.low &&
        static_cast<double>(resume.step) <= chart.steps.high)
      chart.resumes.push_back({static_cast<double>(resume.step), "resumed after this step"});
  return chart;
}

std::string loss(const RunMetrics& metrics) {
  LineChart chart = chart_of(metrics, "loss", "Loss", Unit::number);
  Line train{.name = "train", .color = "c1", .smoothed = true};
  train.points = points_of(metrics, [](const StepRecord& step) { return step.loss; });
  Line eval{.name = "evaluation", .color = "c2", .dots = true};
  for (const watch::EvalRecord& one : metrics.evals)
    eval.points.push_back({static_cast<double>(one.step), one.loss});
  for (const StepRecord& step : metrics.steps)
    if (step.skipped) chart.skipped.push_back(static_cast<double>(step.step));
  chart.lines = {std::move(train), std::move(eval)};
  return draw(chart);
}

template <typename Value>
std::string single(const RunMetrics& metrics, const char* id, const char* title, Unit unit, const char* color,
                   bool from_zero, Value value) {
  LineChart chart = chart_of(metrics, id, title, unit);
  chart.from_zero = from_zero;
  Line line{.name = title, .color = color};
  for (const StepRecord& step : metrics.steps)
    if (const std::optional<double> one = value(step))
      line.points.push_back({static_cast<double>(step.step), *one});
  chart.lines = {std::move(line)};
  return draw(chart);
}

double other_seconds(const StepRecord& step) {
  double rest = step.seconds;
  for (const auto use : kUses) rest -= step.times.*use;
  return rest > 0.005 * step.seconds ? rest : 0;
}

// [names, steps]
std::vector<std::vector<double>> seconds_by_use(const RunMetrics& metrics) {
  std::vector<std::vector<double>> seconds(kUseNames.size());
  for (const StepRecord& step : metrics.steps) {
    for (size_t use = 0; use < kUses.size(); ++use) seconds[use].push_back(step.times.*kUses[use]);
    seconds.back().push_back(other_seconds(step));
  }
  return seconds;
}

std::string mean_table(const std::vector<std::string>& names, const std::vector<double>& means,
                       double whole) {
  std::vector<std::vector<Cell>> rows;
  for (size_t i = 0; i < names.size(); ++i)
    rows.push_back({{"<i class=\"" + color_of(i) + "\"></i>" + escaped(names[i])},
                    number_cell(watch::seconds_text(means[i])),
                    number_cell(short_decimal(whole > 0 ? 100 * means[i] / whole : 0) + "%")});
  return table({text_cell("Use"), number_cell("Mean of a step"), number_cell("Share")}, rows);
}

}  // namespace

std::string curves(const Run& run) {
  const RunMetrics& metrics = run.metrics;
  if (metrics.steps.empty() && metrics.evals.empty())
    return section("curves", "Training", "<p class=\"none\">No step is done yet.</p>\n");
  std::string small;
  small += single(metrics, "learning-rate", "Learning rate", Unit::rate, "c4", true,
                  [](const StepRecord& step) { return std::optional(step.learning_rate); });
  small += single(metrics, "gradient-norm", "Gradient norm", Unit::number, "c5", true,
                  [](const StepRecord& step) { return step.gradient_norm; });
  small += single(metrics, "throughput", "Tokens per second", Unit::count, "c3", true,
                  [](const StepRecord& step) { return std::optional(step.tokens_per_second); });
  small += single(
      metrics, "step-memory", "Peak memory of rank 0", Unit::bytes, "c6", true, [](const StepRecord& step) {
        return step.memory_bytes > 0 ? std::optional(static_cast<double>(step.memory_bytes)) : std::nullopt;
      });
  return section(
      "curves", "Training",
      "<div class=\"wide\">" + loss(metrics) + "</div>\n<div class=\"pair\">" + small + "</div>\n");
}

std::string step_times(const Run& run) {
  const std::vector<std::vector<double>> seconds = seconds_by_use(run.metrics);
  StackedChart chart{.id = "step-times", .title = "Seconds of a step on rank 0", .unit = Unit::seconds};
  std::vector<double> means;
  double whole = 0;
  for (size_t use = 0; use < seconds.size(); ++use) {
    double sum = 0;
    for (const double one : seconds[use]) sum += std::isfinite(one) ? std::max(0.0, one) : 0;
    if (sum <= 0) continue;
    chart.names.push_back(kUseNames[use]);
    chart.values.push_back(seconds[use]);
    means.push_back(sum / static_cast<double>(seconds[use].size()));
    whole += means.back();
  }
  for (const StepRecord& step : run.metrics.steps) chart.steps.push_back(static_cast<double>(step.step));
  const std::string drawn = draw(chart);
  if (drawn.empty()) return "";
  return section("times", "Where the time goes",
                 "<div class=\"wide\">" + drawn + "</div>\n" +
                     draw_bar(chart.names, means, whole, Unit::seconds) +
                     mean_table(chart.names, means, whole));
}

}  // namespace fsdp::report
