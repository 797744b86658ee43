// Run: what happens before the first step.
#include <fsdp/average.h>
#include <fsdp/version.h>
#include <fsdp/waiting.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "app/config/resolve.h"
#include "trainer/adapters.h"
#include "trainer/describe_run.h"
#include "trainer/language_model.h"
#include "trainer/run.h"
#include "trainer/run_settings.h"
#include "trainer/same_run.h"
#include "trainer/token_data.h"

namespace fsdp::train {

namespace {

constexpr int64_t kStandardSteps = 1000;

// The global batch of the run in `folder`. Its config.yaml was written by a run, so it has one.
int64_t saved_global_batch(const std::string& folder) {
  const config::Resolution saved = config::resolve({.config = watch::RunFolder{folder}.config()}, {}, {});
  TORCH_CHECK(saved.problems.empty(), "cannot resume: ", saved.problems.front());
  return saved.settings.integer("training.global_batch_size");
}

TrainModel to_train_model(LanguageModel model, const ModelSpec& spec) {
  auto loss = std::move(model.loss);
  return {.model = std::move(model.model),
          .loss = [loss](const Microbatch& batch) { return loss(batch.inputs, batch.targets); },
          .model_config = hugging_face_config(spec)};
}

}  // namespace

Run::Run(const World& world, const config::Settings& settings, const RunRequest& request,
         const TrainHooks& hooks)
    : world_(world), settings_(settings), request_(request), hooks_(hooks), began_(Clock::now()) {
  if (settings_.flag("logging.debug")) set_log_level(LogLevel::debug);
  torch::manual_seed(static_cast<uint64_t>(settings_.integer("training.seed")));
  set_wait_timeout(world_, std::chrono::seconds(settings_.integer("distributed.timeout")));
  open_folder();
  check_same_settings(world_, settings_);
  make_model();
  end_part("model");
  make_data();
  end_part("data");
  make_training();
  load_weights();
  resume();
  end_part("weights");
  announce();
}

Run::~Run() = default;

void Run::end_part(const char* part) {
  if (request_.start) request_.start->end(part);
}

// Decides on the global batch too: a run that is resumed keeps its own.
void Run::open_folder() {
  const watch::RunFolder folder{request_.folder};
  const bool there = keeps_files() && folder.has_run();
  const bool has_config =
      there && std::filesystem::exists(folder.config());  // `fsdp ckpt import` writes none
  TORCH_CHECK(!there || request_.resume, folder.path,
              " holds a run already. --resume auto goes on with it; --run DIR starts another one elsewhere");
  if (has_config) {
    constexpr const char* key = "training.global_batch_size";
    const int64_t saved = saved_global_batch(folder.path);
    TORCH_CHECK(!settings_.is_given(key) || settings_.integer(key) == saved, key, " is ",
                settings_.peek(key).dump(), " (", settings_.origin(key).text, "), but the run in ",
                folder.path, " has ", saved, ": leave it out to go on with that, or start another run");
    settings_.set(key, saved, {config::Layer::derived, folder.config()});
  }
  const config::BatchPlan plan = batch_plan(settings_, world_.size());
  numbers_ = {.batch_size = plan.batch_size,
              .accumulation = plan.accumulation,
              .global_batch_size = plan.global_batch_size,
              .microbatches = plan.microbatches};
  settings_.set("training.global_batch_size", plan.global_batch_size, {config::Layer::derived, "derived"});
  settings_.set("training.gradient_accumulation_steps", plan.accumulation,
                {config::Layer::derived, "derived"});
  // Rank 0 writes to the folder when the others have looked at it.
  if (keeps_files()) world_.comm().barrier("the run's folder was looked at");
}

// Called when nothing can be refused any more: a start that fails leaves no run, and a run its config.yaml.
void Run::start_files() {
  if (!keeps_files() || world_.rank() != 0) return;
  const watch::RunFolder folder{request_.folder};
  if (settings_.has("logging.log_file")) {
    const std::string log = settings_.text("logging.log_file");
    const std::filesystem::path parent = std::filesystem::path(log).parent_path();
    std::error_code error;
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    errno = 0;
    if (!std::ofstream(log, std::ios::app)) throw IoError("open", log, errno, "logging.log_file");
  }
  folder.make();
  folder.write_config(settings_.to_yaml());
}

void Run::make_model() {
  const config::BatchPlan plan{.batch_size = numbers_.batch_size,
                               .accumulation = numbers_.accumulation,
                               .global_batch_size = numbers_.global_batch_size,
                               .microbatches = numbers_.microbatches};
  sharding_ = shard_options(settings_, plan);
  if (hooks_.model) {
    TORCH_CHECK(settings_.integer("lora.rank") == 0,
                "lora.rank is set, but the model is the program's own: add its adapters there");
    TORCH_CHECK(!settings_.flag("distributed.fsdp.activation_checkpointing"),
                "distributed.fsdp.activation_checkpointing is set, but the model is the program's own: use "
                "fsdp::recompute() or fsdp::Recomputed<Block> there");
    spec_.name = "the program's own";
    spec_.type = "own";
    model_ = hooks_.model(world_, sharding_);
    if (settings_.number("training.ema_decay") > 0)
      average_ = hooks_.model(world_, average_options(sharding_));
    return;
  }
  spec_ = model_spec(settings_);
  const ModelOptions options{.recompute = settings_.flag("distributed.fsdp.activation_checkpointing"),
                             .seed = static_cast<uint64_t>(settings_.integer("training.seed"))};
  LanguageModel model = make_language_model(world_, spec_, options, sharding_);
  capture_step_ = model.capture_step;
  model_ = to_train_model(std::move(model), spec_);
  if (settings_.number("training.ema_decay") > 0)
    average_ = to_train_model(make_language_model(world_, spec_, options, average_options(sharding_)), spec_);
}

void Run::make_data() {
  const auto seed = static_cast<uint64_t>(settings_.integer("training.seed"));
  if (hooks_.data) {
    data_ = hooks_.data(world_, numbers_);
    if (hooks_.eval_data) eval_data_ = hooks_.eval_data(world_, numbers_);
    data_description_ = "the program's own";
    return;
  }
  const int64_t length = settings_.has("data.sequence_length") ? settings_.integer("data.sequence_length")
                                                               : spec_.context_length;
  TORCH_CHECK(length > 0,
              "data.sequence_length is not set, and the model does not say how long its context is");
  const Corpus corpus = open_corpus(settings_, spec_.vocab_size, length);
  train_samples_ = static_cast<int64_t>(corpus.train->samples());
  train_tokens_ = corpus.train->tokens();
  check_same_data(
      world_, std::to_string(train_tokens_) + " tokens in " + std::to_string(train_samples_) + " sequences");
  auto data =
      std::make_unique<TokenData>(world_, corpus.train, numbers_, seed, settings_.flag("data.shuffle"),
                                  static_cast<size_t>(settings_.integer("data.read_ahead")));
  data_description_ = describe_data(corpus, *data, length);
  data_ = std::move(data);
  if (settings_.integer("eval.every_steps") == 0) return;
  if (corpus.validation)
    eval_data_ =
        std::make_unique<EvalData>(world_, corpus.validation, numbers_, settings_.integer("eval.batches"));
  else
    request_.notes.emplace_back(
        "eval: there is no evaluation, since the validation data is shorter than one sequence");
}

void Run::make_training() {
  TORCH_CHECK(!keeps_best() || eval_data_ != nullptr,
              "checkpoint.keep_best is set, but there is no validation data to find the best by: set "
              "data.validation or "
              "a larger data.validation_fraction");
  TORCH_CHECK(
      settings_.integer("eval.patience") == 0 || eval_data_ != nullptr,
      "eval.patience is set, but there is no validation data to evaluate: set data.validation or a larger "
      "data.validation_fraction");
  TORCH_CHECK(
      !settings_.has("training.max_epochs") || data_->steps_per_epoch() > 0,
      "training.max_epochs is set, but the program's data does not say how many steps an epoch has: set "
      "training.max_steps");
  steps_ = settings_.has("training.max_steps") ? settings_.integer("training.max_steps") : 0;
  if (settings_.has("training.max_epochs")) {
    const int64_t in_epochs = settings_.integer("training.max_epochs") * data_->steps_per_epoch();
    steps_ = steps_ > 0 ? std::min(steps_, in_epochs) : in_epochs;
  }
  if (steps_ == 0) steps_ = kStandardSteps;
  optimizer_ = make_optimizer(settings_, model_->model);
  schedule_ = std::make_unique<LearningRateSchedule>(*optimizer_, schedule_options(settings_, steps_));
  const StepOptions options{.gradient_clipping = settings_.number("training.gradient_clipping"),
                            .microbatches = numbers_.microbatches,
                            .reproducible = settings_.flag("training.reproducible"),
                            .scaled = settings_.text("training.precision") == "16-mixed"};
  step_ = std::make_unique<TrainStep>(world_, *model_, *optimizer_, sharding_, options);
  if (capture_pays()) step_->capture(capture_step_());
  state_.emplace(RunState{.model = model_->model,
                          .optimizer = optimizer_.get(),
                          .scheduler = schedule_.get(),
                          .scaler = step_->scaler(),
                          .model_config = model_->model_config});
  if (average_) state_->parts[kAverage] = {.model = average_->model};
}

// A step is captured where the host would be slower than the GPU: up to about 1e13 operations a step.
bool Run::capture_pays() const {
  if (settings_.text("training.graph") == "off" || !capture_step_) return false;
  if (!world_.device().is_cuda() || world_.size() > 1 || numbers_.accumulation > 1) return false;
  if (step_->scaler() != nullptr || sharding_.reproducible || sharding_.check_gradients) return false;
  const int64_t length = settings_.has("data.sequence_length") ? settings_.integer("data.sequence_length")
                                                               : spec_.context_length;
  const double tokens = static_cast<double>(numbers_.global_batch_size * length);
  constexpr double kMostOperations = 1e13;
  return flops_per_token(spec_, model_->model.num_parameters(), length) * tokens <= kMostOperations;
}

// Start weights: of another run, or of a Hugging Face folder. A run that is resumed has its own.
void Run::load_weights() {
  if (keeps_files() && request_.resume && has_checkpoint(request_.folder)) return;
  if (spec_.lora.rank > 0) {
    const WeightSources sources = weight_sources(settings_, spec_);
    const BaseWeights base = load_start_of_adapters(world_, model_->model, model_->model_config, sources);
    set_base(state_->values, base);
    data_description_ += "; adapters on " + (base.path.empty() ? "random weights" : base.path);
    return;
  }
  const bool from = settings_.has("training.init_from");
  if (!from && spec_.pretrained.empty()) return;
  const std::string path = from ? settings_.text("training.init_from") : spec_.pretrained;
  if (keeps_files() && request_.resume && has_checkpoint(request_.folder)) return;
  RunState weights{.model = model_->model, .model_config = model_->model_config};
  const LoadReport report = load(path, weights, {.weights_only = true, .cast = true});
  data_description_ += "; start weights from " + report.path;
}

void Run::announce() {
  for (const std::string& note : request_.notes) reporter_->note(note);
  watch::StartRecord start = describe_start(world_, settings_, spec_, *model_, request_.folder, steps_);
  for (const std::string& line : start_lines(start, world_, settings_, numbers_, data_description_))
    reporter_->note(line);
  if (request_.start) {
    start.seconds = request_.start->seconds();
    reporter_->note("ready   " + request_.start->text());
  }
  reporter_->write(start);
  start_control();
  saved_at_ = Clock::now();
}

// Training does not need it, so a machine without loopback trains all the same.
void Run::start_control() {
  if (!keeps_files() || world_.rank() != 0) return;
  try {
    control_.emplace(control::ControlFacts{.folder = {request_.folder},
                                           .ranks = world_.size(),
                                           .step = state_->step,
                                           .last_step = steps_,
                                           .waiting = [world = world_] { return waiting_for(world); }});
  } catch (const IoError& error) {
    reporter_->note(std::string("warning: `fsdp ctl` cannot reach this run: ") + error.what());
  }
}

}  // namespace fsdp::train
