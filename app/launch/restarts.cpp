#include "app/launch/restarts.h"

namespace fsdp::launch {

namespace {

constexpr int kMostInOneStep = 3;

}  // namespace

bool CrashLoop::add(int64_t step) {
  times_ = step >= 0 && step == step_ ? times_ + 1 : 1;
  step_ = step;
  return step >= 0 && times_ >= kMostInOneStep;
}

Outcome run_with_restarts(Job job, const Tell& tell) {
  CrashLoop loop;
  for (;; ++job.restart_count) {
    Outcome outcome = run_ranks(job, tell);
    const bool failed =
        outcome.exit_code() != 0 && outcome.interrupted_by == 0 && !outcome.asks_for_requeue();
    if (!failed || job.restart_count >= job.max_restarts) return outcome;
    if (outcome.exit_code() == job.final_code) {
      outcome.not_again = kUsedWrongly;
      return outcome;
    }
    if (loop.add(outcome.step())) {
      outcome.not_again = "Not started again: three starts in a row failed in step " +
                          std::to_string(outcome.step()) + ", and the next would, too.";
      return outcome;
    }
    tell(in_short(outcome) + "; starting all ranks again (restart " + std::to_string(job.restart_count + 1) +
         " of " + std::to_string(job.max_restarts) + ")");
  }
}

}  // namespace fsdp::launch
