// How the ranks of a group communicate: the options of a Comm and the choices its operations take.
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

// What memory from Comm::allocate is for.
enum class MemoryUse : uint8_t {
  gather,  // a slot, the target of all_gather; local, shm: one memory for all ranks
  reduce,  // the input of reduce_scatter; local, shm: the other ranks can read it
};

enum class BackendKind : uint8_t { automatic, local, shm, nccl, c10d };

using C10dFactory = std::function<c10::intrusive_ptr<::c10d::Backend>(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size)>;

struct CommOptions {
  // automatic: c10d if it is set below, nccl for CUDA, local for threads, shm for processes of one host.
  BackendKind backend = BackendKind::automatic;
  std::chrono::milliseconds timeout{300000};  // of every wait without a timeout of its own
  C10dFactory c10d = {};                      // creates the backend when `backend` is c10d
};

}  // namespace fsdp
