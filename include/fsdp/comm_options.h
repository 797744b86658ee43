// Options of a Comm, and the choices its operations take.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp {

enum class ReduceOp : uint8_t { sum, average };

// The purpose of memory from Comm::allocate.
enum class MemoryUse : uint8_t {
  gather,  // a slot, the target of all_gather; local, shm: one memory for all ranks
  reduce,  // the input of reduce_scatter; local, shm: readable by the other ranks
};

enum class BackendKind : uint8_t { automatic, local, shm, nccl, c10d, gloo };

using C10dFactory = std::function<c10::intrusive_ptr<::c10d::Backend>(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size)>;

// FSDP_TIMEOUT, in seconds; else 5 minutes. Throws RendezvousError if it is not a positive number.
std::chrono::milliseconds default_timeout();

struct CommOptions {
  // automatic: c10d if it is set below, nccl for CUDA, local for threads, shm for processes of one host, gloo
  // for CPU ranks of several hosts.
  BackendKind backend = BackendKind::automatic;
  // Timeout of every wait that is not given its own.
  std::chrono::milliseconds timeout = default_timeout();
  C10dFactory c10d = {};  // creates the backend when `backend` is c10d
};

}  // namespace fsdp
