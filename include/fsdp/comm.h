// Collective communication between the ranks of a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp {

class World;
namespace detail {

class TimedWork;
struct CommState;
}  // namespace detail

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

// Totals of one operation in one group since it was made.
struct OpStats {
  std::string op;
  int64_t count = 0;
  int64_t bytes = 0;   // of the full buffer: the gathered slot, the input of a reduce
  double seconds = 0;  // this thread spent in the call and in wait()
};

// A collective in flight. Dropping it waits; while an exception unwinds, as drop() does.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<detail::TimedWork> pending);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  // CPU: returns when the data is there. CUDA: orders what follows on the current stream, without blocking.
  // Throws CommError when a peer dies or leaves, ranks disagree, or the group's timeout passes.
  void wait();
  // The same with another timeout; on CUDA the calling thread waits for the data.
  void wait(std::chrono::milliseconds timeout);
  // For a rank that fails by itself: waits a second at most (local, shm). Then the group's next call throws.
  void drop();

 private:
  std::shared_ptr<detail::TimedWork> pending_;
};

// The ranks of one group, seen from one of them. A cheap handle; copies share the group.
//
// Threads: one thread at a time per group. Order: every rank issues the same collectives in the same order
// with the same sizes; a mismatch is thrown, not waited for.
// A group moves only inside calls on it: wait for several groups in the same order on all ranks. `label` says
// what is moved, in errors and statistics. Memory: tensors are contiguous and stay unchanged until wait();
// dtypes fp32, fp64, bf16, fp16, int64, uint8.
class Comm {
 public:
  // A group of all ranks of `world`. Collective.
  static Comm create(const World& world, const CommOptions& options = {});

  int rank() const;
  int size() const;
  const char* backend_name() const;
  std::chrono::milliseconds timeout() const;

  // Zeroed memory that this group moves fastest, 256-byte aligned. Collective: same order and size.
  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype);

  // slot[r * n, (r + 1) * n) becomes rank r's `shard` [n], cast to the slot's dtype. `shard` may be that part
  // of `slot` itself. Where ranks share memory (shares_memory()) an allocated `slot` is then not copied at
  // all: every rank keeps its own part there, and calls claim() before it writes to it again. Gathering into
  // allocated memory again first releases what was there.
  Work all_gather(const at::Tensor& slot, const at::Tensor& shard, std::string_view label);

  // This rank reads `slot` no longer: once all have said so its memory may be gathered into again. Does not
  // wait for other ranks once the gather itself is complete.
  void release(const at::Tensor& slot);

  // Releases allocated `memory` and waits until no rank reads it: call it before writing there again.
  void claim(const at::Tensor& memory, std::string_view label = "");

  // output[i] = scale * (sum or average over ranks of input[rank * n + i]), in the input's dtype. Sums follow
  // the balanced binary tree over the rank index, in fp32 or wider, so the bits do not depend on timing
  // (nccl, c10d: their own order).
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                      std::string_view label);

  Work all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label);
  Work broadcast(const at::Tensor& tensor, int root, std::string_view label);
  // Messages between two ranks arrive in the order sent. Both may be posted before either is waited for.
  Work send(const at::Tensor& tensor, int to, std::string_view label);
  Work recv(const at::Tensor& tensor, int from, std::string_view label);
  void barrier(std::string_view label = "barrier");

  // Compares what ranks have asked of this group so far, where the backend does not (nccl, c10d): throws
  // CommError where they differ; unless `now`, a later call does. Collective.
  void check_order(bool now);
  // Lets the others read what this rank has asked of the group, for their errors.
  void share_order() const;

  // Ranks with the same colour (>= 0) form a group, ordered by rank. Collective.
  Comm split(int colour, std::string_view name = "split");

  // Whether sums follow the tree over the rank index, as reduce_scatter says (local, shm).
  bool sums_in_order() const;
  // Whether memory allocated for gathers is one for all ranks of the group (local, shm).
  bool shares_memory() const;

  // Makes every wait on this group throw CommError with `reason`, here and on all peers. From any thread.
  void abort(std::string_view reason);
  // Peers that miss this rank later get CommError (peer_left) with these words; "": none. nccl, c10d: no-op.
  void leaving(std::string_view why);

  // One row per operation used so far.
  std::vector<OpStats> stats() const;

 private:
  explicit Comm(std::shared_ptr<detail::CommState> state);
  std::shared_ptr<detail::CommState> state_;
};

}  // namespace fsdp
