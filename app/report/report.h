// report.html of a run: one file that needs nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "trainer/watch/read_metrics.h"

namespace fsdp::report {

// The folder has nothing to report: it is none of a run, or nothing has been recorded yet.
class NothingToReport : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The input of a page.
struct Run {
  std::string folder = {};
  watch::RunMetrics metrics = {};
  std::optional<std::string> config = {};  // the text of config.yaml; unset: there is none
  double now = 0;                          // seconds since 1970
};

// Throws NothingToReport, and IoError for a file that cannot be read.
Run read_run(const std::string& folder);

// The whole file. Texts of the run are escaped; nothing is loaded from elsewhere. Pure.
std::string page(const Run& run);

// Writes a file whole or not at all. Throws IoError.
void write_whole(const std::string& path, const std::string& text);

}  // namespace fsdp::report
