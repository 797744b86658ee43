// The sections of the page, each as HTML; empty where the run has nothing for it.
#pragma once

#include <string>
#include <vector>

#include "app/report/report.h"

namespace fsdp::report {

// How a run stands.
struct Status {
  enum class Kind { done, running, stopped, lost } kind = Kind::lost;
  std::string text = {};    // "Finished: all steps done"
  std::string detail = {};  // one sentence more, or empty
};

// A run is taken for running until it has been silent for a minute, or for ten steps if that is longer.
Status status_of(const Run& run);

// The name, the status and the most important numbers.
std::string header(const Run& run);

std::string curves(const Run& run);      // loss, learning rate, gradient norm, throughput, memory
std::string step_times(const Run& run);  // where the time goes
std::string memory(const Run& run);      // bytes of each rank by kind
std::string traffic(const Run& run);     // communication of each unit
std::string checkpoints(const Run& run);
std::string events(const Run& run);  // starts, resumes, skipped steps, ends and notes
std::string configuration(const Run& run);
std::string environment(const Run& run);

// "<section><h2>...": empty if `content` is.
std::string section(const std::string& id, const std::string& title, const std::string& content);

}  // namespace fsdp::report
