// What a communication backend provides. Comm checks arguments and keeps statistics; a backend moves bytes.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/error.h>

#include <chrono>
#include <memory>
#include <string>

#include "kernels/cpu/dtype.h"
#include "launch/world_state.h"

namespace fsdp::detail {

// One operation, as errors and peers see it.
struct OpInfo {
  const char* op = "";
  std::string label;
};

// A collective that was issued. Created by the backend; wait() is called at most once.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  // `blocking`: the calling thread waits for the data even where ordering the current stream would do.
  virtual void wait(std::chrono::milliseconds timeout, bool blocking) = 0;
  // Dropped while an exception unwinds. False: wait() is needed. True: the backend has dealt with it, without
  // waiting for others for long. Does not throw.
  virtual bool drop() { return false; }
};
using WorkPtr = std::shared_ptr<PendingWork>;

// Why a rank ended its group.
enum class AbortCause : uint8_t {
  caller,  // somebody called Comm::abort
  order,   // ranks were asked for different operations: see Note [Order of operations]
};

// Where a group's ranks live and how they find each other. `store` is the group's own part of the world's
// store.
struct GroupInfo {
  int rank = 0;
  int size = 1;
  std::vector<Peer> peers;  // in group order; Peer::rank is the world rank
  int ranks_on_host = 1;    // of the whole world, on this rank's host
  c10::Device device{c10::kCPU};
  c10::intrusive_ptr<::c10d::Store> store;
  CommOptions options;
  std::shared_ptr<FirstCause> cause = std::make_shared<FirstCause>();  // one for all groups of a rank
};

// Arguments have been checked: contiguous, right device and dtype, equal sizes; only that ranks agree has
// not.
class CommBackend {
 public:
  virtual ~CommBackend() = default;

  virtual const char* name() const = 0;
  // Whether operations that differ between ranks are found before they move a byte.
  virtual bool compares_operations() const { return false; }
  // Whether reduce_scatter and all_reduce sum along the tree over the rank index (Note [The tree of sums]).
  // Reproducible mode relies on it.
  virtual bool sums_in_order() const { return false; }
  // Whether memory allocated for gathers is one for all ranks.
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
  // Of a group that was aborted, by this rank or by one that it heard from.
  virtual AbortCause abort_cause() const { return AbortCause::caller; }
  virtual void leaving(std::string_view /*why*/) {}
  virtual void gave_up(std::string_view /*why*/) {}
};

// The group `info.peers` split off; `info` describes the new group. Every backend folder has the same two
// functions:
//   bool x_available();
//   std::unique_ptr<CommBackend> make_x(const GroupInfo& info);
using BackendPtr = std::shared_ptr<CommBackend>;

DType to_dtype(at::ScalarType type);  // throws c10::Error for types Comm does not carry

// The world rank is what people know: errors name it, whatever the group.
inline int world_rank(const GroupInfo& info, int group_rank) {
  return info.peers[static_cast<size_t>(group_rank)].rank;
}

}  // namespace fsdp::detail
