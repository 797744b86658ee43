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
  gather,  // a slot: target of all_gather. One memory for all ranks of a host where the backend can
  reduce,  // input of reduce_scatter: this rank's own, readable by the others where the backend can
};

enum class BackendKind : uint8_t { automatic, local, shm, nccl, c10d };

using C10dFactory = std::function<c10::intrusive_ptr<::c10d::Backend>(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size)>;

struct CommOptions {
  BackendKind backend =
      BackendKind::automatic;  // nccl for CUDA; shm for CPU ranks of one host; local for threads
  std::chrono::milliseconds timeout{300000};  // of every wait that does not say otherwise
  C10dFactory c10d = {};                      // makes the backend when `backend` is c10d
};

}  // namespace fsdp
