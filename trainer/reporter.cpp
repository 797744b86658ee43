#include "trainer/reporter.h"

#include <fcntl.h>
#include <fsdp/waiting.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

namespace fsdp::train {

namespace {

std::vector<watch::Scalar> scalars_of(const watch::StepRecord& step) {
  std::vector<watch::Scalar> scalars = {{"loss", step.loss},
                                        {"learning_rate", step.learning_rate},
                                        {"tokens_per_second", step.tokens_per_second},
                                        {"memory/peak_bytes", static_cast<double>(step.memory_bytes)},
                                        {"time/step", step.seconds},
                                        {"time/data", step.times.data},
                                        {"time/forward", step.times.forward},
                                        {"time/backward", step.times.backward},
                                        {"time/optimizer", step.times.optimizer},
                                        {"time/waiting", step.times.waiting}};
  if (step.gradient_norm) scalars.push_back({"gradient_norm", *step.gradient_norm});
  if (step.mfu) scalars.push_back({"mfu", *step.mfu});
  return scalars;
}

}  // namespace

// A file that gets what a terminal without a live line would.
class Reporter::LogFile {
 public:
  LogFile(const std::string& path, int64_t every_steps)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (file_ < 0) throw IoError("open", path, errno, "a log of the run");
    progress_.emplace(watch::ProgressOptions{.fd = file_, .every_steps = every_steps});
  }
  ~LogFile() {
    progress_.reset();
    ::close(file_);
  }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  watch::Progress& progress() { return *progress_; }

 private:
  int file_;
  std::optional<watch::Progress> progress_;
};

Reporter::Reporter(const World& world, const ReportOptions& options)
    : world_(world), every_steps_(options.every_steps) {
  if (world.rank() != 0) return;
  progress_.emplace(watch::ProgressOptions{.fd = STDERR_FILENO,
                                           .terminal = watch::find_terminal(STDERR_FILENO),
                                           .every_steps = options.every_steps});
  if (!options.folder.empty()) {
    const watch::RunFolder folder{options.folder};
    add_log(folder.logs() + "/rank-0.log");
    metrics_.emplace(folder.metrics());
    if (options.tensorboard) events_.emplace(options.folder, options.resumed_after);
    if (options.wandb) wandb_.emplace(*options.wandb);
  }
  if (!options.log_file.empty()) add_log(options.log_file);
  sink_before_ =
      set_log_sink([this](LogLevel level, std::string_view line) { note(format_log_line(level, line)); });
  if (progress_->is_live())
    on_waiting(world_, [this](const std::string& text, auto waited) { show_peer(text, waited); });
}

// A log gets the library's own line.
void Reporter::show_peer(const std::string& text, std::chrono::milliseconds waited) {
  peer_wait_.reset();
  if (!text.empty()) peer_wait_.emplace(progress_->waiting(text, waited));
}

Reporter::~Reporter() {
  if (!progress_) return;
  on_waiting(world_, nullptr);
  set_log_sink(sink_before_);
}

void Reporter::add_log(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  logs_.push_back(std::make_unique<LogFile>(path, every_steps_));
}

void Reporter::write(const watch::Record& record) {
  if (metrics_) metrics_->write(record);
}

void Reporter::step(const watch::StepRecord& record, int64_t steps, double seconds_left) {
  if (!progress_) return;
  const watch::ProgressState state{.step = record.step,
                                   .steps = steps,
                                   .loss = record.loss,
                                   .learning_rate = record.learning_rate,
                                   .gradient_norm = record.gradient_norm,
                                   .tokens_per_second = record.tokens_per_second,
                                   .mfu = record.mfu,
                                   .memory_bytes = record.memory_bytes,
                                   .seconds_left = seconds_left};
  progress_->step(state);
  for (const auto& log : logs_) log->progress().step(state);
  const bool due = record.step % every_steps_ == 0 || record.step == steps || record.skipped;
  if (!due) return;
  write(record);
  if (events_) events_->scalars(record.step, scalars_of(record), record.time);
}

void Reporter::eval(const watch::EvalRecord& record) {
  write(record);
  const watch::Scalar loss{"eval/loss", record.loss};
  if (events_) events_->scalars(record.step, {&loss, 1}, record.time);
}

void Reporter::note(const std::string& text) {
  if (progress_) progress_->note(text);
  for (const auto& log : logs_) log->progress().note(text);
}

void Reporter::event(int64_t step, const std::string& text) {
  note(text);
  write(watch::EventRecord{.step = step, .text = text});
}

std::optional<watch::Progress::Wait> Reporter::waiting(const std::string& what) {
  if (!progress_) return std::nullopt;
  return progress_->waiting(what);
}

void Reporter::keep_line() {
  if (progress_) progress_->keep_line();
}

void Reporter::finish() {
  if (!wandb_) return;
  std::optional<std::string> problem;
  {
    const auto wait = waiting("Weights & Biases");
    problem = wandb_->finish();
  }
  if (problem) note("warning: " + *problem);
}

}  // namespace fsdp::train
