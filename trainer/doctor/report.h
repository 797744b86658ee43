// The report of `fsdp doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/doctor/finding.h"
#include "trainer/doctor/links.h"

namespace fsdp::doctor {

struct HostReport {
  std::string name;   // "node1, ranks 0 to 3"
  Findings findings;  // of the machine and its ranks
};

struct Timing {
  std::string operation;
  double bytes_per_second = 0;
  double latency = 0;  // of a small one, in seconds
};

struct Report {
  std::vector<HostReport> hosts = {};
  Findings run = {};  // of all ranks together: versions, clocks, collectives, links
  std::vector<Timing> timings = {};
  std::vector<Link> links = {};
};

// The worst level of all findings.
Level worst(const Report& report);

std::string report_text(const Report& report);
nlohmann::json to_json(const Report& report);

}  // namespace fsdp::doctor
