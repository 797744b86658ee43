// The options of `fsdp run`, which are torchrun's, as a job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/launch/job.h"
#include "app/launch/nodes/run_nodes.h"

namespace fsdp::launch {

// As typed. Empty: not given.
struct RunOptions {
  std::vector<std::string> command = {};  // the program and its arguments
  bool standalone = false;
  std::string nnodes = "1";          // a number, or MIN:MAX
  std::string nproc_per_node = "1";  // a number, gpu, cpu or auto
  std::string node_rank = {};
  std::string master_addr = {};
  std::string master_port = {};
  std::string rdzv_endpoint = {};  // HOST or HOST:PORT: master_addr and master_port
  std::string rdzv_backend = {};
  std::string rdzv_id = {};
  std::string rdzv_conf = {};  // "join_timeout=600,last_call_timeout=10": seconds
  std::string log_dir = {};
  std::string tee = {};                 // streams on the console: "3", or by local rank "0:3,1:2"
  std::string local_ranks_filter = {};  // "0,2": the local ranks on the console
  std::string max_restarts = "0";
  std::string numa_binding = {};      // none, node or exclusive
  std::string monitor_interval = {};  // checked only: ends of ranks are noticed at once
  std::string typed = "fsdp run";     // all of it, for the lines to type on each node
};

// Processors and GPUs of this machine that ranks may use.
struct Devices {
  int processors = 1;
  int gpus = 0;
};

// For more than one node, NODE_RANK, MASTER_ADDR and MASTER_PORT of `environment` stand for options that are
// not given. Throws LaunchError with the option, what was found and what is expected.
Job make_job(const RunOptions& options, const Environment& environment, const Devices& devices);

// The meeting of the launchers of several nodes; `job` is make_job() of the same options. None if the
// launchers need not know of each other: the number of nodes is fixed and ranks are not restarted. Throws
// LaunchError.
std::optional<Meeting> make_meeting(const RunOptions& options, const Environment& environment,
                                    const Job& job);

}  // namespace fsdp::launch
