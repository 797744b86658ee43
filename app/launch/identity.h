// What this process is to a launcher: the one that starts ranks here, or one of the ranks.
#pragma once

#include <string>

#include "app/launch/job.h"

namespace fsdp::launch {

enum class Role {
  alone,  // no launcher: starts all ranks, on this machine
  node,   // started once per node: starts this node's ranks
  rank,   // a launcher started this process as one rank
};

// What the configuration asks for, and what the user typed.
struct Request {
  int nodes = 1;
  int ranks = 0;                       // per node; 0: not known yet
  std::string command = "fsdp train";  // with its arguments, for the lines to type on each node
  std::string host = "node0";          // this machine's name, likewise
};

struct Identity {
  Role role = Role::alone;
  std::string source;   // "NODE_RANK, MASTER_ADDR and MASTER_PORT", "srun", ...
  int rank = 0;         // role rank: of the world
  int local_rank = -1;  // -1: the launcher does not say
  int world_size = 1;   // role rank
  int local_size = 0;   // ranks of this node; 0: not known, or no rank
  int node_rank = 0;    // role node
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: any. Roles alone and node
};

// Looks only at `environment`. In this order:
//   NODE_RANK without RANK: a node (MASTER_ADDR and MASTER_PORT are needed for more than one), also where
//   srun
//     or mpirun started one process per node
//   RANK and WORLD_SIZE (torchrun, Ray, Kubernetes), OpenMPI, srun (SLURM_PROCID in a step), MPICH, Intel
//   MPI:
//     a rank
//   else: alone, which is refused for more than one node.
// Throws LaunchError with what was found and what to type, also where variables contradict each other.
Identity find_identity(const Environment& environment, const Request& request);

}  // namespace fsdp::launch
