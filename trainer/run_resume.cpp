// Run: a run that goes on, and where its checkpoints go.
#include <fsdp/average.h>
#include <fsdp/checkpoint_files.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trainer/adapters.h"
#include "trainer/describe_run.h"
#include "trainer/run.h"
#include "trainer/run_settings.h"
#include "trainer/same_run.h"

namespace fsdp::train {

namespace {

std::optional<watch::WandbOptions> wandb_options(const config::Settings& settings,
                                                 const std::string& folder) {
  if (!settings.flag("wandb.use_wandb")) return std::nullopt;
  watch::WandbOptions options{
      .folder = folder, .project = settings.text("wandb.project"), .mode = settings.text("wandb.mode")};
  if (settings.has("wandb.entity")) options.entity = settings.text("wandb.entity");
  options.tags = settings.list("wandb.tags");
  return options;
}

bool has_average(const std::string& checkpoint) {
  const auto tensors = inspect_checkpoint(checkpoint).tensors;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const auto& one) { return one.name.starts_with(std::string(kAverage) + "."); });
}

}  // namespace

void Run::resume() {
  if (average_) update_average(average_->model, model_->model, 0.0);
  SaveOptions options{.keep_last = settings_.integer("checkpoint.keep_last")};
  // Ranks wait for the slowest one's write. What was set holds here too; the usual 30 minutes suit slow
  // disks.
  if (settings_.is_given("distributed.timeout"))
    options.timeout = std::chrono::seconds(settings_.integer("distributed.timeout"));
  if (keeps_best()) options.keep_best = "eval_loss";
  if (spec_.lora.rank > 0) options.filter = models::is_adapter;
  if (keeps_files()) saver_ = std::make_unique<BackgroundSaver>(request_.folder, options);
  ReportOptions reporting{.folder = request_.folder,
                          .tensorboard = settings_.flag("logging.tensorboard"),
                          .every_steps = settings_.integer("logging.every_steps")};
  if (settings_.has("logging.log_file")) reporting.log_file = settings_.text("logging.log_file");
  if (keeps_files()) reporting.wandb = wandb_options(settings_, request_.folder);
  if (!keeps_files() || !request_.resume || !has_checkpoint(request_.folder)) {
    start_files();
    reporter_.emplace(world_, reporting);
    return;
  }
  const LoadReport report = load_run(options.filter);
  if (spec_.lora.rank > 0) load_beneath_adapters(report.path);
  first_step_ = saved_step_ = state_->step;
  take_values();
  reporting.resumed_after = first_step_;
  start_files();
  reporter_.emplace(world_, reporting);
  for (const std::string& damaged : report.damaged) reporter_->note(damaged);
  reporter_->write(watch::ResumeRecord{.step = first_step_, .from = report.path});
  reporter_->note("resumes " + report.path + ", which " + std::to_string(report.ranks) +
                  (report.ranks == 1 ? " rank" : " ranks") + " saved");
}

// Weights, moments and position. The checkpoint has the optimizer's options of the run before; those of the
// configuration hold from here on.
LoadReport Run::load_run(const std::function<bool(const std::string& name)>& filter) {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> configured;
  for (const auto& group : optimizer_->param_groups()) configured.push_back(group.options().clone());
  LoadReport report = load(request_.folder, *state_, {.filter = filter, .fall_back = true});
  for (size_t i = 0; i < configured.size(); ++i)
    optimizer_->param_groups()[i].set_options(std::move(configured[i]));
  set_learning_rate();
  check_same_model(state_->model_config, model_->model_config, report.path);
  if (spec_.lora.rank > 0) check_same_adapters(state_->model_config, model_->model_config, report.path);
  state_->model_config = model_->model_config;
  if (!average_ && world_.rank() == 0 && has_average(report.path))
    request_.notes.push_back("training.ema_decay: " + report.path +
                             " has an average of the weights, and this run keeps none: it is left behind");
  return report;
}

// Restores the counts of earlier processes of the run. A checkpoint that `fsdp ckpt import` made has none.
void Run::take_values() {
  const auto number = [&]<class T>(const char* name, T otherwise) {
    const auto found = state_->values.find(name);
    return found != state_->values.end() && std::holds_alternative<T>(found->second)
               ? std::get<T>(found->second)
               : otherwise;
  };
  metrics_.tokens = number("tokens", int64_t{0});
  const double best = number("best_eval_loss", std::numeric_limits<double>::quiet_NaN());
  if (std::isfinite(best)) best_eval_ = best;
  evals_without_gain_ = number("evals_without_gain", int64_t{0});
  const int64_t patience = settings_.integer("eval.patience");
  if (patience > 0 && evals_without_gain_ >= patience) stop_reason_ = "early stop";
  const int64_t samples = number("train_samples", train_samples_),
                tokens = number("train_tokens", train_tokens_);
  if (samples != train_samples_ || tokens != train_tokens_)
    request_.notes.push_back("data: " + std::to_string(train_tokens_) + " tokens in " +
                             std::to_string(train_samples_) + " sequences; before there were " +
                             std::to_string(tokens) + " in " + std::to_string(samples) +
                             ", so the steps to come see other sequences than they would have");
}

// Sets the learning rate of the next step, by the schedule of this configuration. Schedule::step() sets those
// of the steps after it.
void Run::set_learning_rate() {
  const double factor = learning_rate_factor(schedule_options(settings_, steps_), state_->step);
  for (auto& group : optimizer_->param_groups())
    group.options().set_lr(factor * settings_.number("optimizer.lr"));
}

// A run with LoRA saves its adapters alone.
void Run::load_beneath_adapters(const std::string& checkpoint) {
  const BaseWeights base = base_of(state_->values, checkpoint);
  for (const auto& model : {model_, average_})
    if (model) load_base(world_, model->model, base, weight_sources(settings_, spec_));
}

}  // namespace fsdp::train
