#include "trainer/doctor/links.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fsdp::doctor {

namespace {

std::string formatted(double value, const char* unit) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.3g %s", value, unit);
  return text;
}

double median_rate(const std::vector<Link>& links) {
  std::vector<double> rates;
  for (const Link& link : links) rates.push_back(link.bytes_per_second);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

// Of the same pair, the other way; 0: not measured.
double opposite_rate(const std::vector<Link>& links, const Link& link) {
  for (const Link& other : links)
    if (other.from == link.to && other.to == link.from) return other.bytes_per_second;
  return 0;
}

}  // namespace

nlohmann::json to_json(const Link& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"bytes_per_second", link.bytes_per_second},
          {"latency", link.latency}};
}

Link link_from(const nlohmann::json& json) {
  return {.from = json.value("from", ""),
          .to = json.value("to", ""),
          .bytes_per_second = json.value("bytes_per_second", 0.0),
          .latency = json.value("latency", 0.0)};
}

std::vector<std::vector<std::pair<int, int>>> pair_rounds(int count) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  if (count <= kAlone) {
    for (int a = 0; a < count; ++a)
      for (int b = a + 1; b < count; ++b) rounds.push_back({{a, b}});
    return rounds;
  }
  // The circle method: one end stays, the others turn. An end without a partner pauses.
  const int ends = count + count % 2;
  for (int turn = 0; turn + 1 < ends; ++turn) {
    rounds.emplace_back();
    for (int i = 0; i < ends / 2; ++i) {
      const auto at = [&](int place) { return place == 0 ? 0 : 1 + (place - 1 + turn) % (ends - 1); };
      const int a = at(i), b = at(ends - 1 - i);
      if (a < count && b < count) rounds.back().emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

const Link& slowest(const std::vector<Link>& links) {
  return *std::min_element(links.begin(), links.end(), [](const Link& a, const Link& b) {
    return a.bytes_per_second < b.bytes_per_second;
  });
}

Finding judge_links(const std::vector<Link>& links) {
  const Link& slow = slowest(links);
  Finding found{.subject = "links"};
  found.text = "the slowest is " + slow.from + " -> " + slow.to + ": " + rate_text(slow.bytes_per_second) +
               ", " + delay_text(slow.latency);
  constexpr size_t kEnough = 6;  // directions: three pairs
  const double median = median_rate(links), opposite = opposite_rate(links, slow);
  if (links.size() >= kEnough && slow.bytes_per_second < 0.5 * median)
    found.text += "; the median is " + rate_text(median);
  else if (slow.bytes_per_second < 0.1 * opposite)
    found.text += "; the other direction has " + rate_text(opposite);
  else
    return found;
  found.level = Level::warning;
  found.advice =
      "Every collective is as slow as the slowest link. On " + slow.from +
      " look for a limit (`tc qdisc show`), errors (`ip -s link`) and the negotiated speed (`ethtool`), or "
      "leave this machine out";
  return found;
}

Finding judge_clock(const std::string& host, double offset, double accuracy) {
  Finding found{.subject = "clocks"};
  found.text = host + " is " + delay_text(std::abs(offset)) + (offset < 0 ? " behind" : " ahead of") +
               " rank 0, +- " + delay_text(accuracy);
  constexpr double kMuch = 0.5;
  if (std::abs(offset) < kMuch + accuracy) return found;
  found.level = Level::warning;
  found.advice =
      "Times in logs and metrics of different machines do not compare, and tools on shared storage take new "
      "files for old ones. Start chronyd or systemd-timesyncd on " +
      host;
  return found;
}

std::string links_text(const std::vector<Link>& links) {
  size_t width = 0;
  for (const Link& link : links) width = std::max(width, link.from.size() + link.to.size());
  std::string text;
  for (const Link& link : links) {
    const std::string name = link.from + " -> " + link.to;
    const std::string rate = rate_text(link.bytes_per_second);
    text += "  " + name + std::string(width + 6 - name.size(), ' ') + rate +
            std::string(rate.size() < 12 ? 12 - rate.size() : 1, ' ') + delay_text(link.latency) + "\n";
  }
  return text;
}

std::string rate_text(double bytes_per_second) {
  return bytes_per_second >= 1e9 ? formatted(bytes_per_second / 1e9, "GB/s")
                                 : formatted(bytes_per_second / 1e6, "MB/s");
}

std::string delay_text(double seconds) {
  return seconds >= 1e-3 ? formatted(seconds * 1e3, "ms") : formatted(seconds * 1e6, "us");
}

}  // namespace fsdp::doctor
