// Collective communication between the ranks of a group.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/comm_options.h>
#include <fsdp/work.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class World;
namespace detail {
struct CommState;
}

// Totals of one operation in one group since it was made.
struct OpStats {
  std::string op;
  int64_t count = 0;
  int64_t bytes = 0;   // of the full buffer: the gathered slot, the input of a reduce
  double seconds = 0;  // this thread spent in the call and in wait()
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
  explicit Comm(std::shared_ptr<detail::CommState> state);  // the library's own way to make one

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
  std::shared_ptr<detail::CommState> state_;
};

}  // namespace fsdp
