// Weights & Biases: whether it can be used, and the Python process that sends it a run's metrics.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::watch {

// Starts `python`, a program name or path, and looks for the package wandb; with `online` also for a login.
// Returns what is missing and the line to type; unset: nothing is. Takes 0.1 s, with `online` about 2 s.
std::optional<std::string> wandb_problem(const std::string& python, bool online = false);

struct WandbOptions {
  std::string folder = {};  // of the run, with its metrics.jsonl
  std::string project = {};
  std::string entity = {};  // empty: wandb's default
  std::string mode = "online";
  std::vector<std::string> tags = {};
  std::string python = "python3";
};

// A process that runs wandb_follow.py: it sends the lines of metrics.jsonl as they are added, and writes to
// logs/wandb.log of the run. It leads a session of its own and outlives a killed run until the rest is sent.
// Threads: one at a time.
class WandbFollower {
 public:
  // Throws IoError.
  explicit WandbFollower(const WandbOptions& options);
  // Without finish() before, the process sends what there is on its own.
  ~WandbFollower();
  WandbFollower(const WandbFollower&) = delete;
  WandbFollower& operator=(const WandbFollower&) = delete;

  // No more lines come. Waits until all are sent. Returns what went wrong, or that it takes longer than
  // `patience`, after which the process goes on alone; unset: all is sent.
  std::optional<std::string> finish(std::chrono::milliseconds patience = std::chrono::minutes(1));

 private:
  void end_input();

  std::string log_;
  int input_ = -1;  // its end tells the process that the run has ended
  pid_t process_ = 0;
};

}  // namespace fsdp::watch
