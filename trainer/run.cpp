// Run: the loop.
#include "trainer/run.h"

#include <fsdp/average.h>
#include <fsdp/waiting.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <utility>

#include "trainer/describe_run.h"
#include "trainer/failure.h"
#include "trainer/stop_signal.h"
#include "trainer/watch/metrics_writer.h"
#include "trainer/watch/text.h"

namespace fsdp::train {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TrainResult Run::train() {
  const StopSignal signals;
  model_->model.train();
  began_ = Clock::now();
  try {
    while (state_->step < steps_ && stop_reason_.empty()) step();
    if (stop_reason_.empty()) stop_reason_ = "all steps done";
    return end();
  } catch (const std::exception& error) {
    const Failure failure = describe_failure(error);
    write_end(failure.text, failure.exit_code);
    throw;
  }
}

Votes Run::vote() {
  const double minutes = settings_.number("checkpoint.every_minutes");
  const bool old = minutes > 0 && world_.rank() == 0 && seconds_since(saved_at_) >= 60 * minutes;
  const int signal = StopSignal::received();
  const control::ControlVotes asked = control_ ? control_->take(state_->step + 1) : control::ControlVotes{};
  asked_to_stop_ = asked.stop;
  return {.stop = signal != 0 || asked.stop,
          .requeue = StopSignal::asks_for_requeue(signal),
          .save = old || asked.save};
}

void Run::step() {
  const Clock::time_point start = Clock::now();
  step_file_.write(state_->step + 1);
  note_step(world_, state_->step + 1);
  enter("data");
  metrics_.learning_rate = optimizer_->param_groups().front().options().get_lr();
  std::vector<Microbatch> batches;
  {
    const auto wait = reporter_->waiting("the data of step " + std::to_string(state_->step + 1));
    batches = data_->batch(state_->step);
  }
  const double data_seconds = seconds_since(start);
  StepResult result;
  {
    enter("step");
    const auto wait = reporter_->waiting("step " + std::to_string(state_->step + 1));
    result = step_->run(batches, vote());
  }
  result.times.data = data_seconds;
  ++state_->step;
  schedule_->step();
  if (average_ && !result.skipped)
    update_average(average_->model, model_->model, settings_.number("training.ema_decay"));
  report(result, seconds_since(start));
  count_skipped(result);
  evaluate_if_due();
  if (result.votes.stop && stop_reason_.empty() && state_->step < steps_) {
    requeue_ = result.votes.requeue;
    stop_reason_ = StopSignal::received() != 0 ? StopSignal::name(StopSignal::received())
                   : asked_to_stop_            ? "fsdp ctl stop"
                                               : "a signal to another rank";
  }
  if (saving_ && !saver_->busy()) note_saved();
  if (save_is_due(result)) save();
}

void Run::count_skipped(const StepResult& result) {
  if (result.counted == 0)
    reporter_->event(state_->step, "step " + std::to_string(state_->step) +
                                       " changed nothing: none of its tokens counts in the loss");
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  if (!result.skipped) return;
  const bool scaler = step_->scaler() != nullptr;
  reporter_->event(
      state_->step,
      "step " + std::to_string(state_->step) + " was skipped: its gradient is not finite" +
          (scaler ? "; the loss scale is now " + std::to_string(step_->scaler()->get_scale()) : ""));
  const int64_t most = settings_.integer("training.max_skipped_steps");
  if (skipped_in_a_row_ <= most) return;
  const std::string text =
      std::to_string(skipped_in_a_row_) +
      " steps in a row had gradients that are not finite (training.max_skipped_steps: " +
      std::to_string(most) + "); the last was step " + std::to_string(state_->step) +
      ". A lower optimizer.lr, a longer schedule.warmup_steps or another training.precision may help";
  reporter_->event(state_->step, text);
  if (saver_) saver_->wait();
  throw NumericError(text);
}

void Run::report(const StepResult& result, double seconds) {
  metrics_.step = state_->step;
  metrics_.loss = result.loss;
  metrics_.gradient_norm = result.gradient_norm;
  metrics_.seconds = seconds;
  metrics_.tokens += result.counted;
  metrics_.skipped = result.skipped;
  const double rate = static_cast<double>(result.counted) / seconds;
  watch::StepRecord record{.step = state_->step,
                           .loss = result.loss,
                           .learning_rate = metrics_.learning_rate,
                           .gradient_norm = result.gradient_norm,
                           .tokens = metrics_.tokens,
                           .tokens_per_second = rate,
                           .mfu = model_flops_utilization(world_, settings_, spec_, model_->model, rate),
                           .seconds = seconds,
                           .times = result.times,
                           .memory_bytes = peak_memory(world_, model_->model, *optimizer_),
                           .skipped = result.skipped};
  record.times.checkpoint = std::exchange(checkpoint_time_, 0);
  const int64_t per_epoch = data_->steps_per_epoch();
  if (per_epoch > 0) record.epoch = static_cast<double>(state_->step) / static_cast<double>(per_epoch);
  const double mean = seconds_since(began_) / static_cast<double>(state_->step - first_step_);
  record.time = watch::seconds_since_1970();
  if (control_) control_->done(record);
  reporter_->step(record, steps_, mean * static_cast<double>(steps_ - state_->step));
  if (hooks_.on_step) hooks_.on_step(metrics_);
}

void Run::evaluate_if_due() {
  const int64_t every = settings_.integer("eval.every_steps");
  if (!eval_data_ || every == 0 || (state_->step % every != 0 && state_->step != steps_)) return;
  evaluate_now(true);
}

void Run::evaluate_now(bool is_due) {
  enter("evaluation");
  const auto wait = reporter_->waiting("the evaluation after step " + std::to_string(state_->step));
  note_evaluation(evaluate(world_, average_ ? *average_ : *model_, *eval_data_), is_due);
}

void Run::note_evaluation(const EvalResult& result, bool is_due) {
  metrics_.eval_loss = result.loss;
  evaluated_step_ = state_->step;
  const watch::EvalRecord record{.time = watch::seconds_since_1970(),
                                 .step = state_->step,
                                 .loss = result.loss,
                                 .tokens = result.counted};
  if (control_) control_->done(record);
  reporter_->eval(record);
  reporter_->note(describe_evaluation(state_->step, result.loss, best_eval_, average_.has_value()));
  const bool better = std::isfinite(result.loss) && (!best_eval_ || result.loss < *best_eval_);
  if (better) best_eval_ = result.loss;
  if (!is_due) return;  // when a run is saved must not decide when it stops
  evals_without_gain_ = better ? 0 : evals_without_gain_ + 1;
  const int64_t patience = settings_.integer("eval.patience");
  if (patience > 0 && evals_without_gain_ >= patience && stop_reason_.empty()) {
    stop_reason_ = "early stop";
    reporter_->event(state_->step, "early stop: " + std::to_string(evals_without_gain_) +
                                       " evaluations without a lower loss (eval.patience)");
  }
}

bool Run::save_is_due(const StepResult& result) const {
  const int64_t every = settings_.integer("checkpoint.every_steps");
  return result.votes.save || (every > 0 && state_->step % every == 0);
}

void Run::save() {
  if (!saver_ || saved_step_ == state_->step) return;
  if (keeps_best() && evaluated_step_ != state_->step)
    evaluate_now(false);  // each checkpoint has its own loss
  const Clock::time_point start = Clock::now();
  enter("checkpoint");
  const auto wait = reporter_->waiting("the checkpoint of step " + std::to_string(state_->step));
  state_->values["tokens"] = metrics_.tokens;
  state_->values["global_batch_size"] = numbers_.global_batch_size;
  state_->values.erase("eval_loss");
  if (evaluated_step_ == state_->step) state_->values["eval_loss"] = *metrics_.eval_loss;
  if (train_samples_ > 0) state_->values["train_samples"] = train_samples_;
  if (train_tokens_ > 0) state_->values["train_tokens"] = train_tokens_;
  if (best_eval_) state_->values["best_eval_loss"] = *best_eval_;
  state_->values["evals_without_gain"] = evals_without_gain_;
  saver_->save(*state_);
  if (!settings_.flag("checkpoint.background")) checkpoint_ = saver_->wait();
  saved_step_ = state_->step;
  saved_at_ = Clock::now();
  const double seconds = seconds_since(start);
  checkpoint_time_ += seconds;
  note_saved();  // of the save before, which has ended
  saving_ = {.step = state_->step, .blocking_seconds = seconds};
  saving_since_ = start;
  if (!settings_.flag("checkpoint.background")) note_saved();
}

// Records the last save once `latest` names it.
void Run::note_saved() {
  if (!saving_ || world_.rank() != 0) return;
  std::ifstream latest(request_.folder + "/latest");
  std::string name;
  std::getline(latest, name);
  if (name.find(std::to_string(saving_->step)) == std::string::npos) return;
  saving_->path = request_.folder + "/" + name;
  saving_->seconds = seconds_since(saving_since_);
  if (control_) control_->saved(saving_->step, saving_->path);
  reporter_->write(*std::exchange(saving_, std::nullopt));
}

void Run::finish_save() {
  if (!saver_) return;
  save();
  enter("end");
  const auto wait = reporter_->waiting("the last checkpoint");
  checkpoint_ = saver_->wait();
  note_saved();
}

// For `fsdp ctl status`.
void Run::enter(const char* phase) {
  if (control_) control_->enter(phase);
}

void Run::write_end(const std::string& reason, int exit_code) {
  reporter_->write(watch::EndRecord{.step = state_->step,
                                    .steps = state_->step - first_step_,
                                    .seconds = seconds_since(began_),
                                    .reason = reason,
                                    .exit_code = exit_code});
}

TrainResult Run::end() {
  finish_save();
  reporter_->write(describe_memory(state_->step, model_->model, *optimizer_));
  reporter_->write(describe_units(state_->step, state_->step - first_step_, model_->model));
  reporter_->keep_line();
  write_end(stop_reason_, 0);
  reporter_->note(stop_reason_ + " after step " + std::to_string(state_->step) + " in " +
                  watch::clock_text(seconds_since(began_)) +
                  (checkpoint_.empty() ? "" : "; saved " + checkpoint_));
  reporter_->finish();
  if (control_) control_->ended();
  if (keeps_files()) reporter_->note("its curves: fsdp report " + request_.folder);
  // A launcher ends the other ranks when one leaves with an exit code other than 0.
  if (requeue_) world_.comm().barrier("rank 0 has written its files");
  return {.model = model_->model,
          .metrics = metrics_,
          .run = request_.folder,
          .checkpoint = checkpoint_,
          .stop_reason = stop_reason_,
          .requeue = requeue_};
}

}  // namespace fsdp::train
