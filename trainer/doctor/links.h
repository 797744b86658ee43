// Links and clocks of several hosts: which pairs are measured when, and which of them are slow.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trainer/doctor/finding.h"

namespace fsdp::doctor {

// One direction.
struct Link {
  std::string from = {}, to = {};
  double bytes_per_second = 0;
  double latency = 0;  // seconds of a message of 8 bytes
};

nlohmann::json to_json(const Link& link);
Link link_from(const nlohmann::json& json);

// Pairs of 0 .. count-1 in rounds. Pairs of one round are disjoint and may be measured at the same time; up
// to kAlone ends, a round is one pair, so that pairs do not disturb each other.
inline constexpr int kAlone = 8;
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int count);

// The slowest of `links`, which are not empty.
const Link& slowest(const std::vector<Link>& links);

// One finding that names the slowest link. A warning with advice if it has less than half the median of at
// least three links, or less than a tenth of the opposite direction.
Finding judge_links(const std::vector<Link>& links);

// `offset`: seconds by which the clock of `host` is ahead of that of rank 0, known to +- `accuracy`.
Finding judge_clock(const std::string& host, double offset, double accuracy);

// A table of all links.
std::string links_text(const std::vector<Link>& links);

// "1.25 GB/s", "12.5 MB/s".
std::string rate_text(double bytes_per_second);
// "35 us", "1.2 ms".
std::string delay_text(double seconds);

}  // namespace fsdp::doctor
