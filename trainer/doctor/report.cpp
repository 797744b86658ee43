#include "trainer/doctor/report.h"

#include <algorithm>

namespace fsdp::doctor {

namespace {

constexpr size_t kSubjectWidth = 24;

const char* mark(Level level) {
  switch (level) {
    case Level::problem:
      return "PROBLEM  ";
    case Level::warning:
      return "warning  ";
    default:
      return "ok       ";
  }
}

void add(std::string& text, const Findings& findings) {
  for (const Finding& one : findings) {
    text += mark(one.level) + one.subject;
    text += std::string(one.subject.size() < kSubjectWidth ? kSubjectWidth - one.subject.size() : 1, ' ');
    text += one.text + "\n";
    if (!one.advice.empty()) text += "         -> " + one.advice + "\n";
  }
}

int64_t count(const Report& report, Level level) {
  const auto in = [level](const Findings& findings) {
    return std::count_if(findings.begin(), findings.end(),
                         [level](const Finding& one) { return one.level == level; });
  };
  int64_t total = in(report.run);
  for (const HostReport& host : report.hosts) total += in(host.findings);
  return total;
}

std::string counted(int64_t number, const std::string& what) {
  return (number == 0 ? "no" : std::to_string(number)) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

Level worst(const Report& report) {
  return count(report, Level::problem) > 0   ? Level::problem
         : count(report, Level::warning) > 0 ? Level::warning
                                             : Level::ok;
}

std::string report_text(const Report& report) {
  std::string text;
  for (const HostReport& host : report.hosts) {
    text += host.name + "\n";
    add(text, host.findings);
    text += "\n";
  }
  if (!report.run.empty()) {
    text += "all ranks together\n";
    add(text, report.run);
    text += "\n";
  }
  for (const Timing& one : report.timings)
    text += "  " + one.operation +
            std::string(one.operation.size() < 18 ? 18 - one.operation.size() : 1, ' ') +
            rate_text(one.bytes_per_second) + ", small ones " + delay_text(one.latency) + "\n";
  if (!report.links.empty())
    text += "\nlinks, by a message of 8 bytes and by large ones\n" + links_text(report.links);
  if (!report.timings.empty() || !report.links.empty()) text += "\n";
  return text + counted(count(report, Level::problem), "problem") + ", " +
         counted(count(report, Level::warning), "warning") + "\n";
}

nlohmann::json to_json(const Report& report) {
  nlohmann::json json = {
      {"hosts", nlohmann::json::array()},          {"run", to_json(report.run)},
      {"timings", nlohmann::json::array()},        {"links", nlohmann::json::array()},
      {"problems", count(report, Level::problem)}, {"warnings", count(report, Level::warning)}};
  for (const HostReport& host : report.hosts)
    json["hosts"].push_back({{"name", host.name}, {"findings", to_json(host.findings)}});
  for (const Timing& one : report.timings)
    json["timings"].push_back(
        {{"operation", one.operation}, {"bytes_per_second", one.bytes_per_second}, {"latency", one.latency}});
  for (const Link& link : report.links) json["links"].push_back(to_json(link));
  return json;
}

}  // namespace fsdp::doctor
