// CommBackend: the interface of backends. Comm checks arguments and keeps statistics; a backend moves bytes.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/error.h>

#include <chrono>
#include <memory>
#include <string>

#include "kernels/cpu/dtype.h"
#include "launch/world_state.h"

namespace fsdp::detail {

// One operation, as errors and peers describe it.
struct OpInfo {
  const char* op = "";
  std::string label;
};

// A collective that was issued. The backend creates it; wait() is called at most once.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  // `blocking`: the calling thread waits for the data, even if ordering the current stream would be enough.
  virtual void wait(std::chrono::milliseconds timeout, bool blocking) = 0;
  // Called instead of wait() while an exception unwinds. Returns false if wait() is needed; true if the
  // backend has dealt with it, without waiting long for others. Does not throw.
  virtual bool drop() { return false; }
};
using WorkPtr = std::shared_ptr<PendingWork>;

// The reason a rank ended its group.
enum class AbortCause : uint8_t {
  caller,  // the program called Comm::abort
  order,   // ranks issued different operations: see Note [Order of operations]
};

// The ranks of a group, and the means by which they meet. `store` is the group's own part of the world's
// store.
struct GroupInfo {
  int rank = 0;
  int size = 1;
  std::vector<Peer> peers;  // in group order; Peer::rank is the world rank
  int ranks_on_host = 1;    // number of ranks of the world on this rank's host
  c10::Device device{c10::kCPU};
  c10::intrusive_ptr<::c10d::Store> store;
  CommOptions options;
  // Shared by all groups of a rank.
  std::shared_ptr<FirstCause> cause = std::make_shared<FirstCause>();
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  std::shared_ptr<Heartbeat> heartbeat = {};  // null: there is none
};

// Arguments have been checked: contiguous, right device and dtype, equal sizes. Only the ranks' agreement is
// not checked.
class CommBackend {
 public:
  virtual ~CommBackend() = default;

  virtual const char* name() const = 0;
  // True if operations that differ between ranks are found before they move a byte.
  virtual bool compares_operations() const { return false; }
  // True if reduce_scatter and all_reduce sum along the tree over the rank index (Note [The tree of sums]).
  // Reproducible mode relies on it.
  virtual bool sums_in_order() const { return false; }
  // True if memory allocated for gathers is one memory for all ranks.
  virtual bool shares_memory() const { return false; }
  virtual at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) = 0;
  virtual void release(const at::Tensor& /*slot*/) {}
  virtual void claim(const at::Tensor& /*memory*/, std::string_view /*label*/) {}

  virtual WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) = 0;
  virtual WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                                 OpInfo info) = 0;
  virtual WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) = 0;
  virtual WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) = 0;
  virtual WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) = 0;
  virtual WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) = 0;
  virtual WorkPtr barrier(OpInfo info) = 0;

  virtual void abort(AbortCause cause, std::string_view reason) = 0;
  // The cause if the group was aborted, by this rank or by one that it heard from.
  virtual AbortCause abort_cause() const { return AbortCause::caller; }
  virtual void leaving(std::string_view /*why*/) {}
  virtual void gave_up(std::string_view /*why*/) {}
};

// The ranks `info.peers` form the new group, which `info` describes. Every backend folder has the same two
// functions:
//   bool x_available();
//   std::unique_ptr<CommBackend> make_x(const GroupInfo& info);
using BackendPtr = std::shared_ptr<CommBackend>;

DType to_dtype(at::ScalarType type);  // throws c10::Error for types Comm does not carry

// Errors name the world rank, in every group, since users know that number.
inline int world_rank(const GroupInfo& info, int group_rank) {
  return info.peers[static_cast<size_t>(group_rank)].rank;
}

}  // namespace fsdp::detail
