// Rank 0's reports of a run: metrics.jsonl, TensorBoard's files, and progress on stderr and in logs.
#pragma once

#include <fsdp/log.h>
#include <fsdp/train.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train_step.h"
#include "trainer/watch/event_file.h"
#include "trainer/watch/metrics_writer.h"
#include "trainer/watch/progress.h"
#include "trainer/watch/run_folder.h"
#include "trainer/watch/wandb.h"

namespace fsdp::train {

struct ReportOptions {
  std::string folder = {};  // of the run; empty: nothing is written
  bool tensorboard = true;
  int64_t every_steps = 1;
  std::optional<int64_t> resumed_after = {};  // the step that a resumed run goes on after
  std::string log_file = {};                  // also gets what logs/rank-0.log of the run gets; empty: none
  std::optional<watch::WandbOptions> wandb = {};
};

// Silent on ranks other than 0, so that callers need not ask. On rank 0 the library's log lines go the same
// way while it lives. Threads: one at a time. The constructor throws IoError.
class Reporter {
 public:
  Reporter(const World& world, const ReportOptions& options);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void write(const watch::Record& record);
  void step(const watch::StepRecord& record, int64_t steps, double seconds_left);
  void eval(const watch::EvalRecord& record);
  // A line on stderr and in logs.
  void note(const std::string& text);
  // The same, and an event of the run.
  void event(int64_t step, const std::string& text);
  // While it lives, stderr shows what is waited for once it takes more than 2 s.
  std::optional<watch::Progress::Wait> waiting(const std::string& what);
  // Ends the live line.
  void keep_line();
  // The run has ended: waits until Weights & Biases has all metrics.
  void finish();

 private:
  class LogFile;

  void add_log(const std::string& path);
  void show_peer(const std::string& text, std::chrono::milliseconds waited);

  World world_;
  std::optional<watch::Progress> progress_;         // unset: not rank 0
  std::optional<watch::Progress::Wait> peer_wait_;  // on the live line: another rank
  std::vector<std::unique_ptr<LogFile>> logs_;
  LogSink sink_before_;
  std::optional<watch::MetricsWriter> metrics_;
  std::optional<watch::EventFile> events_;
  std::optional<watch::WandbFollower> wandb_;
  int64_t every_steps_ = 1;
};

}  // namespace fsdp::train
