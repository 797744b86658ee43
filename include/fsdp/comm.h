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

// Totals of one operation in one group since the group was created.
struct OpStats {
  std::string op;
  int64_t count = 0;
  int64_t bytes = 0;   // bytes of full buffers: the gathered slot, the input of a reduce-scatter
  double seconds = 0;  // time that the calling thread spent in the call and in wait()
};

// The ranks of one group, seen from one of them. A cheap handle; copies share the group.
//
// Threads: one at a time per group. Order: every rank issues the same collectives in the same order with the
// same sizes; a mismatch throws. A group makes progress only inside calls on it: wait for several groups in
// the same order on all ranks. Memory: tensors are contiguous and stay unchanged until wait(); dtypes fp32,
// fp64, bf16, fp16, int64, uint8. `label` names the data, in errors and statistics. Throws c10::Error for
// wrong arguments, and CommError once the group has failed.
class Comm {
 public:
  // A group of all ranks of `world`. Collective.
  static Comm create(const World& world, const CommOptions& options = {});
  explicit Comm(std::shared_ptr<detail::CommState> state);  // for the library

  int rank() const;
  int size() const;
  const char* backend_name() const;
  std::chrono::milliseconds timeout() const;

  // Zeroed memory, 256-byte aligned, fastest for this group. Collective, in the same order and sizes.
  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype);

  // slot[r * n, (r + 1) * n) becomes rank r's `shard` [n], cast to the slot's dtype. `shard` may be that part
  // of `slot` itself. If shares_memory() is true and `slot` was allocated, nothing is then copied. A rank
  // that keeps its shard there calls claim() before it writes to it again. Gathering into allocated memory
  // again releases its old contents.
  Work all_gather(const at::Tensor& slot, const at::Tensor& shard, std::string_view label);

  // This rank no longer reads `slot`; it may be gathered into again once all ranks have released it. Waits
  // for the all-gather into it, but not for other ranks' releases.
  void release(const at::Tensor& slot);

  // Releases allocated `memory` and waits until no rank reads it. Call it before writing there again.
  void claim(const at::Tensor& memory, std::string_view label = "");

  // output[i] = scale * (sum or average over ranks of input[rank * n + i]), in the input's dtype. local, shm
  // and gloo sum along a binary tree over the rank index, in fp32 or wider, so bits do not depend on timing.
  // nccl and c10d sum in their own order.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                      std::string_view label);

  Work all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label);
  Work broadcast(const at::Tensor& tensor, int root, std::string_view label);
  // Messages between two ranks arrive in the order sent. Post send and recv before waiting for either.
  Work send(const at::Tensor& tensor, int to, std::string_view label);
  Work recv(const at::Tensor& tensor, int from, std::string_view label);
  void barrier(std::string_view label = "barrier");

  // nccl, c10d: compares the operations issued so far by all ranks. Throws CommError if they differ: from
  // this call if `now`, else from a later one. Collective.
  void check_order(bool now);
  // nccl, c10d: publishes this rank's latest operations, for the error messages of other ranks.
  void share_order() const;

  // Ranks with the same colour (>= 0) form a group, ordered by rank. Collective.
  Comm split(int colour, std::string_view name = "split");

  // True if sums follow the tree over the rank index (local, shm, gloo).
  bool sums_in_order() const;
  // True if memory allocated for gathers is one memory for all ranks of the group (local, shm).
  bool shares_memory() const;

  // Makes every wait on this group throw CommError with `reason`, here and on all peers. From any thread.
  void abort(std::string_view reason);
  // local, shm, gloo: sets the reason in the CommError (peer_left) that peers get if they still need this
  // rank when it leaves; "": none.
  void leaving(std::string_view why);
  // local, shm: tells peers that this rank skips collectives because of the error `why`, and stays in the
  // group. A peer that waits for it in one of them throws soon, unless the peer has called gave_up() equally
  // often: then both go on. leaving("") clears `why`.
  void gave_up(std::string_view why);

  // One row per operation used so far.
  std::vector<OpStats> stats() const;

 private:
  friend class World;
  std::shared_ptr<detail::CommState> state_;
};

}  // namespace fsdp
