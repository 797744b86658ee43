#include "app/launch/restarts.h"

namespace fsdp::launch {

Outcome run_with_restarts(Job job, const Tell& tell) {
  for (;; ++job.restart_count) {
    Outcome outcome = run_ranks(job, tell);
    const bool failed = outcome.exit_code() != 0 && outcome.interrupted_by == 0;
    if (!failed || job.restart_count >= job.max_restarts) return outcome;
    tell(headline(outcome) + "; starting all ranks again (restart " + std::to_string(job.restart_count + 1) +
         " of " + std::to_string(job.max_restarts) + ")");
  }
}

}  // namespace fsdp::launch
