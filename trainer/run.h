// One run of the trainer: everything it owns, and its life from start to end.
#pragma once

#include <fsdp/fsdp.h>
#include <fsdp/schedule.h>
#include <fsdp/train.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/config/settings.h"
#include "trainer/control/control_server.h"
#include "trainer/evaluation.h"
#include "trainer/language_model.h"
#include "trainer/model_spec.h"
#include "trainer/reporter.h"
#include "trainer/start_times.h"
#include "trainer/step_file.h"
#include "trainer/train_step.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::train {

// The part of a run's checkpoints that holds the average of the weights.
inline constexpr const char* kAverage = "average";

struct RunRequest {
  std::string folder = {};  // empty: nothing is kept
  bool resume = false;
  std::vector<std::string> notes = {};   // about the configuration; the command has shown its own
  std::optional<StartTimes> start = {};  // of this process; none: it is not the command's
};

// Threads: one. Every rank makes one and calls train() once.
class Run {
 public:
  Run(const World& world, const config::Settings& settings, const RunRequest& request,
      const TrainHooks& hooks);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  TrainResult train();

 private:
  using Clock = std::chrono::steady_clock;

  // Before the first step.
  void end_part(const char* part);
  void open_folder();
  void start_files();
  void make_model();
  void make_average();
  void make_data();
  void make_training();
  bool capture_pays() const;
  void load_weights();
  void resume();
  LoadReport load_run(const std::function<bool(const std::string& name)>& filter);
  void take_values();
  void set_learning_rate();
  void load_beneath_adapters(const std::string& checkpoint);
  void announce();
  void start_control();
  bool keeps_files() const { return !request_.folder.empty(); }
  bool keeps_best() const { return keeps_files() && settings_.flag("checkpoint.keep_best"); }

  // One step, and what follows it.
  void step();
  void count_skipped(const StepResult& result);
  void report(const StepResult& result, double seconds);
  void evaluate_if_due();
  void evaluate_now(bool is_due);
  void note_evaluation(const EvalResult& result, bool is_due);
  bool save_is_due(const StepResult& result) const;
  void save();
  void note_saved();
  void finish_save();
  Votes vote();
  double checkpoint_seconds() const;

  // After the last step.
  TrainResult end();
  void enter(const char* phase);
  void write_end(const std::string& reason, int exit_code);

  World world_;
  config::Settings settings_;
  RunRequest request_;
  TrainHooks hooks_;
  BatchNumbers numbers_;
  ShardOptions sharding_;
  ModelSpec spec_;
  std::optional<TrainModel> model_, average_;
  std::function<LanguageModel::Loss()> capture_step_;  // empty: the model has none
  std::unique_ptr<TrainData> data_, eval_data_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<LearningRateSchedule> schedule_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<BackgroundSaver> saver_;
  std::optional<RunState> state_;
  std::optional<Reporter> reporter_;
  std::string data_description_;
  StepFile step_file_;
  std::optional<control::ControlServer> control_;  // on rank 0
  bool asked_to_stop_ = false;                     // by `fsdp ctl`

  int64_t train_samples_ = 0, train_tokens_ = 0;  // 0: unknown
  int64_t steps_ = 0;                             // that the run is to have
  int64_t first_step_ = 0;                        // after which this process began
  int64_t saved_step_ = -1, evaluated_step_ = -1;
  int64_t skipped_in_a_row_ = 0;
  TrainMetrics metrics_;
  std::optional<double> best_eval_;
  int64_t evals_without_gain_ = 0;
  std::string stop_reason_, checkpoint_;
  bool requeue_ = false;  // a signal stopped the run before its last step, and it is to be started again
  Clock::time_point began_, saved_at_, saving_since_;
  double checkpoint_time_ = 0;                     // seconds since the last step that saving took
  std::optional<watch::CheckpointRecord> saving_;  // the save in flight, on rank 0
};

}  // namespace fsdp::train
