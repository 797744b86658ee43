// Who takes part in a run: `fsdp::init()` finds this process's rank, meets the others and returns the World.
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

// What init() should not find out by itself. Every field that is set beats the environment.
struct InitOptions {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<int> local_rank = {};           // rank among the processes of this host
  std::optional<int> local_world_size = {};     // processes of this host
  std::optional<std::string> master_addr = {};  // host that serves the store; rank 0's
  std::optional<int> master_port = {};
  std::optional<c10::Device> device = {};  // default: cuda:(local_rank % visible) when there is one, else cpu
  std::chrono::milliseconds timeout{60000};  // for all ranks to meet
  // LibTorch's threads for operators. Default: the usable processors divided by the ranks of this host, and
  // never more than before; unchanged where OMP_NUM_THREADS or MKL_NUM_THREADS is set.
  std::optional<int> threads = {};
  // On the CPU: memory that tensors give up is kept for the next step instead of going back to the system.
  bool keep_host_memory = true;
};

// One process of the run, as every rank knows it.
struct Peer {
  int rank = 0;
  std::string hostname;
  std::string host_id;  // equal exactly for processes that can share memory
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

  // All ranks in order, with host and process.
  const std::vector<Peer>& peers() const;
  // The distinct hosts, in order of their lowest rank.
  std::vector<std::string> hosts() const;

  // Where rank and size came from, for example "RANK and WORLD_SIZE (torchrun)".
  const std::string& source() const;

  // The key-value store all ranks share. Keys under "fsdp/" belong to the library.
  const c10::intrusive_ptr<c10d::Store>& store() const;

  detail::WorldState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::WorldState> state_;
};

// Meets the other ranks. Collective; returns when all are there.
//
// Rank and size come from, in this order: `options`; RANK and WORLD_SIZE (torchrun, Ray,
// Kubernetes); OMPI_* (OpenMPI); SLURM_* under srun; PMI_* (MPICH, Intel MPI); otherwise this process is
// alone. Throws RendezvousError within `options.timeout` when the environment is wrong or incomplete, a rank
// is missing or there twice, the address or port cannot be used, or a rank runs another build; the message
// names the offender.
World init(const InitOptions& options = {});

// Runs `fn` in `ranks` new processes of this machine, as ranks 0 .. ranks-1 of one World, and waits for them.
//
// The processes are forked: call it before this process starts threads, CUDA or parallel LibTorch work. When
// one rank fails, the others get ten seconds to notice (a stopped one: one second), then SIGKILL. Throws
// Error with the first cause: the rank that failed by itself, in the words of its exception; ranks that
// failed because of another one are named only where no rank failed by itself.
void run_local(int ranks, const std::function<void(World&)>& fn, const InitOptions& options = {});

}  // namespace fsdp
