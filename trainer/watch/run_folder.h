// The folder of a run: what lies where.
#pragma once

#include <string>

namespace fsdp::watch {

// Note [The folder of a run]
// config.yaml (as resolved), job.json (the job that runs it), metrics.jsonl, events.out.tfevents.*,
// logs/rank-N.log, checkpoints (step-* and latest), report.html; control.json while ranks train. Everything
// that looks at a run reads this folder and nothing else, but for `fsdp ctl`, which asks rank 0.
struct RunFolder {
  std::string path;

  std::string config() const { return path + "/config.yaml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string control() const { return path + "/control.json"; }
  std::string logs() const { return path + "/logs"; }
  std::string job() const { return path + "/job.json"; }

  // True if a run has begun there.
  bool has_run() const;
  // Makes the folder. Throws IoError if it cannot be made or written to.
  void make() const;
  // Writes a file whole or not at all. Throws IoError.
  void write_config(const std::string& yaml) const;
};

// runs/<config>/<stage>: `config` is the name of the config file without folder and ending.
std::string default_run_folder(const std::string& config, const std::string& stage);

}  // namespace fsdp::watch
