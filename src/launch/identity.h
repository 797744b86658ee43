// The identity of a rank: rank, size and meeting point, from options or the environment. Meets nobody.
#pragma once

#include <fsdp/world.h>

#include <optional>
#include <string>

namespace fsdp::detail {

// The facts that ranks of one run must share: our version, LibTorch's, and the layout of shared memory.
std::string build_id();

struct Identity {
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_size;
  std::string source;       // the source of rank and size, as text
  std::string master_addr;  // empty in a world of one rank
  int master_port = 0;
  bool agent_store = false;  // a torchrun agent serves the store: no rank may
  std::string run_key;       // tells restarts of one run apart on a store that outlives them
  std::string build = build_id();
};

// Sources in order: options, RANK/WORLD_SIZE, OpenMPI,
// Slurm, PMI, alone. Throws RendezvousError with advice.
Identity find_identity(const InitOptions& options);

// The first host of a Slurm list: "n[03-05,9],m1" -> "n03".
std::string first_slurm_host(const std::string& list);

}  // namespace fsdp::detail
