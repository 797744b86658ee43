#include <algorithm>

#include "app/report/html.h"
#include "app/report/sections.h"
#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

using watch::RunMetrics;

constexpr size_t kMostEvents = 200;

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string text = {};
  bool superseded = false;
  bool alarm = false;
};

std::vector<Event> events_of(const RunMetrics& metrics) {
  std::vector<Event> events;
  for (const watch::StartRecord& start : metrics.starts)
    events.push_back(
        {start.time, 0,
         "started with " + watch::grouped(start.ranks) + (start.ranks == 1 ? " rank" : " ranks")});
  for (const watch::ResumeRecord& resume : metrics.resumes)
    events.push_back({resume.time, resume.step, "resumed from " + resume.from});
  for (const watch::StepRecord& step : metrics.steps)
    if (step.skipped)
      events.push_back({step.time, step.step, "skipped: loss " + watch::loss_text(step.loss), false, true});
  for (const watch::PastEvent& past : metrics.events)
    events.push_back({past.event.time, past.event.step, past.event.text, past.superseded});
  for (const watch::EndRecord& end : metrics.ends)
    events.push_back({end.time, end.step, "ended: " + end.reason, false, end.exit_code != 0});
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.time < b.time; });
  return events;
}

std::string event_list(const std::vector<Event>& events) {
  std::string html = "<ol class=\"events\">\n";
  for (size_t i = 0; i < std::min(events.size(), kMostEvents); ++i) {
    const Event& one = events[i];
    html += "<li" +
            std::string(one.alarm        ? " class=\"alarm\""
                        : one.superseded ? " class=\"old\""
                                         : "") +
            "><time>" + date_text(one.time) + "</time><span>" +
            (one.step > 0 ? "step " + watch::grouped(one.step) : "") + "</span><span>" + escaped(one.text) +
            (one.superseded ? " <small>(superseded: the run was resumed before this step)</small>" : "") +
            "</span></li>\n";
  }
  if (events.size() > kMostEvents)
    html += "<li>" + std::to_string(events.size() - kMostEvents) + " more are in metrics.jsonl</li>\n";
  return html + "</ol>\n";
}

std::string facts(const watch::Facts& all) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& fact : all)
    rows.push_back({text_cell(fact.first), {"<code>" + escaped(fact.second) + "</code>"}});
  return rows.empty() ? "" : table({}, rows);
}

}  // namespace

std::string events(const Run& run) {
  const RunMetrics& metrics = run.metrics;
  std::string html = event_list(events_of(metrics));
  if (metrics.superseded_steps > 0)
    html += "<p>" + watch::grouped(metrics.superseded_steps) +
            " steps were done again after a resume. Only the last time is shown.</p>\n";
  if (!metrics.notes.empty()) {
    html += "<ul class=\"notes\">\n";
    for (const std::string& note : metrics.notes) html += "<li>" + escaped(note) + "</li>\n";
    html += "</ul>\n";
  }
  return section("events", "Events", html);
}

std::string configuration(const Run& run) {
  std::string html = run.metrics.starts.empty() ? "" : facts(run.metrics.starts.back().config);
  if (run.config)
    html += "<details><summary>config.yaml</summary><pre>" + escaped(*run.config) + "</pre></details>\n";
  else
    html += "<p class=\"none\">The run's folder has no config.yaml.</p>\n";
  return section("config", "Configuration", html);
}

std::string environment(const Run& run) {
  if (run.metrics.starts.empty()) return "";
  const watch::StartRecord& start = run.metrics.starts.back();
  watch::Facts all = {{"device", start.device},
                      {"ranks", watch::grouped(start.ranks)},
                      {"nodes", watch::grouped(start.nodes)},
                      {"communication", start.backend},
                      {"parameters", watch::grouped(start.parameters)},
                      {"units", watch::grouped(start.units)}};
  all.insert(all.end(), start.versions.begin(), start.versions.end());
  return section("environment", "Environment", facts(all));
}

}  // namespace fsdp::report
