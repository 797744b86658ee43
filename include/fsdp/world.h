// The ranks of a run: init() finds this process's rank, meets the others and returns the World.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace fsdp {

namespace detail {
struct WorldState;
}

// Every field that is set overrides the environment.
struct InitOptions {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<int> local_rank = {};           // rank among the processes of this host
  std::optional<int> local_world_size = {};     // processes of this host
  std::optional<std::string> master_addr = {};  // host that serves the store; rank 0's
  std::optional<int> master_port = {};
  std::optional<c10::Device> device = {};  // default: FSDP_DEVICE, else cuda:(local_rank % visible), else cpu
  std::chrono::milliseconds timeout{60000};  // for all ranks to meet
  // LibTorch's intra-op threads. Default: the usable processors divided by the ranks of this host, never more
  // than before; unchanged if OMP_NUM_THREADS or MKL_NUM_THREADS is set.
  std::optional<int> threads = {};
  // CPU ranks: keep the memory of freed tensors for the next step instead of returning it to the system.
  bool keep_host_memory = true;
};

// One process of the run.
struct Peer {
  int rank = 0;
  std::string hostname;
  std::string host_id;  // equal if and only if the processes can share memory
  int64_t pid = 0;
};

// The ranks of a run, seen from one of them. A cheap handle; copies share the state.
//
// Threads: const members may be called from any thread.
class World {
 public:
  explicit World(std::shared_ptr<detail::WorldState> state);

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this host
  int local_size() const;
  c10::Device device() const;

  // All ranks, in order.
  const std::vector<Peer>& peers() const;
  // Names of the distinct hosts, in order of their lowest rank.
  std::vector<std::string> hosts() const;

  // Where rank and size came from, for example "RANK and WORLD_SIZE (torchrun)".
  const std::string& source() const;

  // The key-value store of the run. Keys under "fsdp/" belong to the library. It ends with the process that
  // serves it.
  const c10::intrusive_ptr<c10d::Store>& store() const;

  detail::WorldState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::WorldState> state_;
};

// Meets the other ranks; returns when all are there. Collective. Also sets LibTorch's threads, and on CPU
// ranks its allocator (see InitOptions).
//
// Rank and size come from the first of: `options`; RANK and WORLD_SIZE (torchrun, Ray, Kubernetes); OMPI_*
// (OpenMPI); SLURM_* under srun; PMI_* (MPICH, Intel MPI). With none of these this is the only rank. Throws
// RendezvousError within `options.timeout` if the environment is wrong or incomplete, a rank is missing or
// there twice, the address or port cannot be used, or a rank runs another build; it names the rank at fault.
World init(const InitOptions& options = {});

// Runs `fn` in `ranks` new processes of this machine, as ranks 0 .. ranks-1 of one World, and waits for them.
// Of `options` it reads device, timeout, threads and keep_host_memory.
//
// The processes are forked: call it before this process starts threads, CUDA or parallel LibTorch work. If a
// rank fails, the others get ten seconds to notice (a stopped one: one second), then SIGKILL. Throws Error
// with the message of the rank that failed by itself; a rank that failed because of another is named only if
// no rank failed by itself.
void run_local(int ranks, const std::function<void(World&)>& fn, const InitOptions& options = {});

}  // namespace fsdp
