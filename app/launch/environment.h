// The environment variables of a rank: those torchrun sets, and NODE_RANK.
#pragma once

#include <string>
#include <vector>

#include "app/launch/job.h"

namespace fsdp::launch {

// The variables of this process.
Environment current_environment();

// The name of this machine.
std::string host_name();

// A name for a run that no other run has. Ranks of two runs that were given the same
// port then do not take each other for their own.
std::string random_run_id();

// Processors that this process may use, of which a container's control group may allow fewer.
int usable_processors(const std::string& group = "/sys/fs/cgroup");

// GPUs that ranks may use: those of this machine, whose files are in `devices`, or of them those that
// CUDA_VISIBLE_DEVICES names.
int usable_gpus(const Environment& environment, const std::string& devices = "/dev");

// The paths of the two files that a rank writes and the launcher reads (error_files.h).
struct RankFiles {
  std::string error;
  std::string step;
};

// The variables of local rank `local_rank`: `own` (this process's), then Job::environment, then the
// launcher's, which win. OMP_NUM_THREADS is each rank's share of `processors`, unless it is set, and
// TORCH_NCCL_ASYNC_ERROR_HANDLING is 1, unless it is set. TORCHELASTIC_USE_AGENT_STORE is removed: rank 0
// serves the store.
Environment rank_environment(const Job& job, int local_rank, const Environment& own, int processors,
                             int master_port, const RankFiles& files);

// As "NAME=value", for execve.
std::vector<std::string> to_assignments(const Environment& environment);

}  // namespace fsdp::launch
