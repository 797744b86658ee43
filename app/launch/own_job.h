// The job that a process belongs to: a restart goes on with a run of its own job, and with no other.
#pragma once

#include <string>

#include "app/launch/job.h"

namespace fsdp::launch {

struct JobIdentity {
  std::string slurm_job = {};  // "cluster/123": kept when the job is requeued; empty: not in a Slurm job
  std::string agent = {};  // the process that starts ranks again: torchrun, `fsdp run`; empty: there is none
  int slurm_restarts = 0;  // how often Slurm requeued the job
  int agent_restarts = 0;  // how often the agent started the ranks again

  bool exists() const { return !slurm_job.empty() || !agent.empty(); }
  bool is_restart() const { return slurm_restarts > 0 || agent_restarts > 0; }
  // True if this is a restart of the job that `earlier` belongs to.
  bool restarts(const JobIdentity& earlier) const;
};

// Reads SLURM_JOB_ID, SLURM_CLUSTER_NAME, SLURM_RESTART_COUNT and TORCHELASTIC_RESTART_COUNT. The agent is
// the nearest ancestor of this process whose own environment has no TORCHELASTIC_RESTART_COUNT. A run ID is
// no identity: torchrun's is "none" unless the user sets it, and users set the same one again. A counter that
// is no number counts as 0.
JobIdentity find_job(const Environment& environment);

// "restart 2 of Slurm job 123", "restart 1 by its launcher".
std::string describe(const JobIdentity& job);

}  // namespace fsdp::launch
