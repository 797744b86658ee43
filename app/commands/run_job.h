// job.json in a run's folder: the job that trains the run.
#pragma once

#include <string>

#include "app/launch/own_job.h"

namespace fsdp::app {

// The job that last began or resumed the run; nothing in it: none, or the file cannot be read.
launch::JobIdentity read_run_job(const std::string& folder);

// Replaces the file. The folder exists. Throws IoError.
void write_run_job(const std::string& folder, const launch::JobIdentity& job);

}  // namespace fsdp::app
