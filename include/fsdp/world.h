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

namespace at {
class Tensor;
}
namespace c10d {
class Store;
}

namespace fsdp {

class Comm;
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

  // The source of rank and size, for example "RANK and WORLD_SIZE (torchrun)".
  const std::string& source() const;

  // The key-value store of the run. Keys under "fsdp/" belong to the library. It is gone once the process
  // that serves it ends.
  const c10::intrusive_ptr<c10d::Store>& store() const;

  // A group of all ranks for the program's own use. The first call creates it and is collective.
  // <fsdp/comm.h> has its members.
  Comm comm() const;
  // The mean and the sum over all ranks, for example of a logged loss: the same on every rank. A tensor gives
  // a new one with its shape, dtype and device and without a graph. mean() takes floating-point tensors,
  // sum() also integers. Collective. Throws CommError if a rank fails.
  double mean(double value) const;
  double sum(double value) const;
  at::Tensor mean(const at::Tensor& tensor) const;
  at::Tensor sum(const at::Tensor& tensor) const;

  detail::WorldState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::WorldState> state_;
};

// Joins the other ranks; returns when all are there. Collective. Also sets LibTorch's threads and, on CPU
// ranks, its allocator (see InitOptions).
//
// Rank and size come from the first of: `options`; RANK and WORLD_SIZE (torchrun, Ray, Kubernetes); OMPI_*
// (OpenMPI); SLURM_* under srun; PMI_* (MPICH, Intel MPI). With none of these, it is the only rank. Throws
// RendezvousError within `options.timeout` if the environment is wrong or incomplete, a rank is missing or
// there twice, the address or port cannot be used, or a rank runs another build; it names the rank at fault.
World init(const InitOptions& options = {});

// Runs `fn` in `ranks` new processes of this machine, as ranks 0 .. ranks-1 of one World, and waits for them.
// Uses device, timeout, threads and keep_host_memory of `options`.
//
// The processes are forked: call it before this process starts threads, CUDA or parallel LibTorch work. If a
// rank fails, the others get ten seconds to notice (a stopped one: one second), then SIGKILL. Throws
// RankError for the rank that failed by itself, with its message, exit code or signal; for a rank that failed
// because of another only if no rank failed by itself. Throws Error if ranks cannot be started.
void run_local(int ranks, const std::function<void(World&)>& fn, const InitOptions& options = {});

}  // namespace fsdp
