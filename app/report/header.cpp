#include <algorithm>
#include <cmath>

#include "app/report/html.h"
#include "app/report/sections.h"
#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

using watch::RunMetrics;

template <typename T>
double latest(const std::vector<T>& records) {
  return records.empty() ? 0 : records.back().time;
}

double last_time(const RunMetrics& metrics) {
  return std::max({latest(metrics.starts), latest(metrics.resumes), latest(metrics.steps),
                   latest(metrics.evals), latest(metrics.checkpoints), latest(metrics.memory),
                   latest(metrics.units), latest(metrics.ends),
                   metrics.events.empty() ? 0 : metrics.events.back().event.time});
}

template <typename Value>
double median(const RunMetrics& metrics, Value value) {
  std::vector<double> values;
  for (const watch::StepRecord& step : metrics.steps)
    if (const double one = value(step); std::isfinite(one)) values.push_back(one);
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::string silence(double seconds) {
  if (seconds < 3600) return watch::clock_text(seconds) + " minutes";
  return watch::clock_text(seconds) + " hours";
}

std::string tile(const std::string& name, const std::string& value, const std::string& detail = "") {
  return "<div><dt>" + escaped(name) + "</dt><dd>" + escaped(value) +
         (detail.empty() ? "" : "<small>" + escaped(detail) + "</small>") + "</dd></div>\n";
}

int64_t planned_steps(const RunMetrics& metrics) {
  return metrics.starts.empty() ? 0 : metrics.starts.back().steps;
}

std::string eval_tile(const RunMetrics& metrics) {
  const watch::EvalRecord* best = nullptr;
  for (const watch::EvalRecord& eval : metrics.evals)
    if (std::isfinite(eval.loss) && (best == nullptr || eval.loss < best->loss)) best = &eval;
  if (best == nullptr) return "";
  return tile("Best eval loss", watch::loss_text(best->loss), "at step " + watch::grouped(best->step));
}

std::string tiles(const RunMetrics& metrics) {
  if (metrics.steps.empty()) return "";
  const watch::StepRecord& last = metrics.steps.back();
  const int64_t planned = planned_steps(metrics);
  std::string html =
      tile("Training loss", watch::loss_text(last.loss), "at step " + watch::grouped(last.step));
  html += eval_tile(metrics);
  html += tile("Steps", watch::grouped(last.step), planned > 0 ? "of " + watch::grouped(planned) : "");
  html += tile("Tokens", watch::short_count(static_cast<double>(last.tokens)));
  html += tile("Tokens per second",
               watch::short_count(median(metrics, [](const auto& one) { return one.tokens_per_second; })),
               "median");
  html += tile("Time of a step",
               watch::seconds_text(median(metrics, [](const auto& one) { return one.seconds; })), "median");
  if (last.mfu)
    html += tile(
        "MFU",
        short_decimal(100 * median(metrics, [](const auto& one) { return one.mfu.value_or(NAN); })) + "%",
        "median");
  int64_t peak = 0;
  for (const watch::StepRecord& step : metrics.steps) peak = std::max(peak, step.memory_bytes);
  if (peak > 0) html += tile("Peak memory", watch::bytes_text(static_cast<double>(peak)), "on rank 0");
  return "<dl class=\"tiles\">\n" + html + "</dl>\n";
}

std::string subtitle(const Run& run) {
  const RunMetrics& metrics = run.metrics;
  if (metrics.starts.empty()) return "";
  const watch::StartRecord& start = metrics.starts.back();
  std::string text = watch::short_count(static_cast<double>(start.parameters)) + " parameters on " +
                     watch::grouped(start.ranks) + (start.device == "cpu" ? " CPU rank" : " rank") +
                     (start.ranks == 1 ? "" : "s");
  if (start.device != "cpu" && !start.device.empty()) text += " (" + start.device + ")";
  if (start.nodes > 1) text += ", " + watch::grouped(start.nodes) + " nodes";
  return "<p class=\"sub\">" + escaped(text) + " · <code>" + escaped(run.folder) + "</code></p>\n";
}

const char* class_of(Status::Kind kind) {
  switch (kind) {
    case Status::Kind::done:
      return "done";
    case Status::Kind::running:
      return "running";
    case Status::Kind::stopped:
      return "stopped";
    case Status::Kind::lost:
      break;
  }
  return "lost";
}

}  // namespace

Status status_of(const Run& run) {
  const RunMetrics& metrics = run.metrics;
  if (!metrics.ends.empty() && metrics.ends.back().time >= latest(metrics.starts)) {
    const watch::EndRecord& end = metrics.ends.back();
    const bool by_signal = end.reason.starts_with("SIG") || end.reason.starts_with("a signal");
    if (end.exit_code == 0 && by_signal)
      return {Status::Kind::lost, "Stopped by " + end.reason,
              "The run was saved after step " + watch::grouped(end.step) +
                  ". Resume it with fsdp train --resume auto."};
    if (end.exit_code == 0) return {Status::Kind::done, "Finished: " + end.reason};
    return {Status::Kind::stopped, "Stopped: " + end.reason,
            "Exit code " + std::to_string(end.exit_code) + " after step " + watch::grouped(end.step) + "."};
  }
  const double last = last_time(metrics), silent = run.now - last;
  const double step = median(metrics, [](const auto& one) { return one.seconds; });
  const std::string seen = "The last record is of " + date_text(last) + ".";
  if (silent <= std::max(60.0, 10 * step))
    return {Status::Kind::running, "Running", "This page shows the run up to its last record. " + seen};
  return {Status::Kind::lost, "Killed, or silent for " + silence(silent),
          "The run has not recorded an end. " + seen + " Resume it with fsdp train --resume auto."};
}

std::string header(const Run& run) {
  const Status status = status_of(run);
  const std::string model = run.metrics.starts.empty() ? "" : run.metrics.starts.back().model;
  std::string html = "<header>\n<div class=\"title\"><h1>" + escaped(model.empty() ? "Training run" : model) +
                     "</h1><span class=\"status " + class_of(status.kind) + "\">" + escaped(status.text) +
                     "</span></div>\n" + subtitle(run);
  if (!status.detail.empty()) html += "<p class=\"detail\">" + escaped(status.detail) + "</p>\n";
  return html + tiles(run.metrics) + "</header>\n";
}

std::string section(const std::string& id, const std::string& title, const std::string& content) {
  if (content.empty()) return "";
  return "<section id=\"" + id + "\">\n<h2>" + escaped(title) + "</h2>\n" + content + "</section>\n";
}

}  // namespace fsdp::report
