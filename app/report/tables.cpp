#include <algorithm>
#include <cmath>
#include <map>

#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/sections.h"
#include "trainer/watch/text.h"

namespace fsdp::report {

namespace {

using watch::BytesByKind;
using watch::RunMetrics;

constexpr size_t kMostRows = 64;  // of a table; the rest is counted

std::string more_text(size_t all, size_t shown, const char* what) {
  if (all <= shown) return "";
  return "<p class=\"none\">" + watch::grouped(static_cast<int64_t>(all - shown)) + " more " + what +
         " are in metrics.jsonl.</p>\n";
}

double bytes_of(const BytesByKind& kinds) {
  double sum = 0;
  for (const auto& kind : kinds) sum += static_cast<double>(kind.second);
  return sum;
}

struct MemoryRow {
  std::string name;
  const BytesByKind* kinds;
};

std::vector<MemoryRow> memory_rows(const RunMetrics& metrics) {
  std::vector<MemoryRow> rows;
  if (!metrics.starts.empty() && !metrics.starts.back().bytes_per_rank.empty())
    rows.push_back({"at the start", &metrics.starts.back().bytes_per_rank});
  if (!metrics.memory.empty())
    for (const watch::RankMemory& rank : metrics.memory.back().ranks)
      rows.push_back({"rank " + std::to_string(rank.rank), &rank.kinds});
  return rows;
}

std::vector<std::string> kinds_of(const std::vector<MemoryRow>& rows) {
  std::vector<std::string> names;
  for (const MemoryRow& row : rows)
    for (const auto& kind : *row.kinds)
      if (std::find(names.begin(), names.end(), kind.first) == names.end()) names.push_back(kind.first);
  return names;
}

std::vector<double> bytes_by_name(const BytesByKind& kinds, const std::vector<std::string>& names) {
  std::vector<double> bytes(names.size(), 0.0);
  for (const auto& kind : kinds)
    bytes[static_cast<size_t>(std::find(names.begin(), names.end(), kind.first) - names.begin())] +=
        static_cast<double>(kind.second);
  return bytes;
}

// Sums over all records, with units in the order in which they first appear.
std::vector<watch::UnitTraffic> total_traffic(const RunMetrics& metrics) {
  std::vector<watch::UnitTraffic> units;
  std::map<std::string, size_t> index;
  for (const watch::UnitsRecord& record : metrics.units)
    for (const watch::UnitTraffic& unit : record.units) {
      const auto [at, is_new] = index.try_emplace(unit.name, units.size());
      if (is_new) units.push_back({.name = unit.name});
      watch::UnitTraffic& sum = units[at->second];
      sum.gathers += unit.gathers;
      sum.reduces += unit.reduces;
      sum.bytes += unit.bytes;
      if (unit.seconds) sum.seconds = sum.seconds.value_or(0) + *unit.seconds;
    }
  return units;
}

std::vector<Cell> traffic_row(const watch::UnitTraffic& unit, double steps, bool bytes, bool seconds) {
  std::vector<Cell> row = {text_cell(unit.name), number_cell(watch::grouped(unit.gathers)),
                           number_cell(watch::grouped(unit.reduces))};
  if (bytes) row.push_back(number_cell(watch::bytes_text(static_cast<double>(unit.bytes))));
  if (bytes) row.push_back(number_cell(watch::bytes_text(static_cast<double>(unit.bytes) / steps)));
  if (seconds) row.push_back(number_cell(unit.seconds ? watch::seconds_text(*unit.seconds / steps) : "–"));
  return row;
}

watch::UnitTraffic sum_of(const std::vector<watch::UnitTraffic>& units) {
  watch::UnitTraffic sum{.name = "all units"};
  for (const watch::UnitTraffic& unit : units) {
    sum.gathers += unit.gathers;
    sum.reduces += unit.reduces;
    sum.bytes += unit.bytes;
    if (unit.seconds) sum.seconds = sum.seconds.value_or(0) + *unit.seconds;
  }
  return sum;
}

}  // namespace

std::string memory(const Run& run) {
  const std::vector<MemoryRow> rows = memory_rows(run.metrics);
  if (rows.empty()) return "";
  const std::vector<std::string> names = kinds_of(rows);
  double most = 0;
  for (const MemoryRow& row : rows) most = std::max(most, bytes_of(*row.kinds));
  std::vector<Cell> head = {text_cell(""), number_cell("Sum")};
  for (const std::string& name : names) head.push_back(number_cell(name));
  std::string bars;
  std::vector<std::vector<Cell>> cells;
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    const std::vector<double> bytes = bytes_by_name(*rows[i].kinds, names);
    cells.push_back({text_cell(rows[i].name), number_cell(watch::bytes_text(bytes_of(*rows[i].kinds)))});
    for (const double one : bytes)
      cells.back().push_back(number_cell(one > 0 ? watch::bytes_text(one) : "–"));
    bars += "<div class=\"row\"><span>" + escaped(rows[i].name) + "</span>" +
            draw_bar(names, bytes, most, Unit::bytes) + "<span class=\"n\">" +
            escaped(watch::bytes_text(bytes_of(*rows[i].kinds))) + "</span></div>\n";
  }
  return section("memory", "Memory by kind",
                 legend(names) + "<div class=\"rows\">" + bars + "</div>\n" + table(head, cells) +
                     more_text(rows.size(), kMostRows, "ranks"));
}

std::string traffic(const Run& run) {
  std::vector<watch::UnitTraffic> units = total_traffic(run.metrics);
  if (units.empty()) return "";
  double steps = 0;
  for (const watch::UnitsRecord& record : run.metrics.units) steps += static_cast<double>(record.steps);
  steps = std::max(1.0, steps);
  const watch::UnitTraffic sum = sum_of(units);
  std::vector<Cell> head = {text_cell("Unit"), number_cell("All-gathers"), number_cell("Reduce-scatters")};
  if (sum.bytes > 0) head.insert(head.end(), {number_cell("Bytes of rank 0"), number_cell("Bytes per step")});
  if (sum.seconds) head.push_back(number_cell("Time per step"));
  const size_t all = units.size();
  units.resize(std::min(all, kMostRows));
  if (all > 1) units.push_back(sum);
  std::vector<std::vector<Cell>> rows;
  for (const watch::UnitTraffic& unit : units)
    rows.push_back(traffic_row(unit, steps, sum.bytes > 0, sum.seconds.has_value()));
  return section("communication", "Communication by unit",
                 "<p>In " + watch::grouped(static_cast<int64_t>(steps)) + " steps.</p>\n" +
                     table(head, rows) + more_text(all, kMostRows, "units"));
}

std::string checkpoints(const Run& run) {
  constexpr size_t kShown = 12;
  const auto& all = run.metrics.checkpoints;
  if (all.empty()) return "";
  std::vector<std::vector<Cell>> rows;
  for (size_t i = all.size() - std::min(all.size(), kShown); i < all.size(); ++i)
    rows.push_back({number_cell(watch::grouped(all[i].step)),
                    number_cell(watch::seconds_text(all[i].seconds)),
                    number_cell(watch::seconds_text(all[i].blocking_seconds)), text_cell(all[i].path)});
  return section("checkpoints", "Checkpoints",
                 table({number_cell("Step"), number_cell("Time to save"), number_cell("Training stood still"),
                        text_cell("Path")},
                       rows) +
                     more_text(all.size(), kShown, "checkpoints"));
}

}  // namespace fsdp::report
