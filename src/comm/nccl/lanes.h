// Lanes: the communicators of a group, each with the stream of its kernels, under one watchdog.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/communicator.h"
#include "comm/nccl/registered_memory.h"
#include "comm/nccl/watchdog.h"

namespace fsdp::detail {

// One communicator and the stream that its kernels run on.
struct NcclLane {
  std::unique_ptr<NcclCommunicator> comm;
  c10::Stream stream;
};

// Two lanes, so that the reduce of one unit overlaps the gather of the next.
class NcclLanes {
 public:
  // Collective. Throws CommError with NCCL's message, or RendezvousError naming a rank that does not come.
  NcclLanes(const GroupInfo& info, const NcclApi& api);
  ~NcclLanes();
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  NcclLane& gathers() { return gathers_; }  // all_gather, broadcast, messages
  NcclLane& reduces() { return reduces_; }  // reduce_scatter, all_reduce, barrier

  // Enqueues `call` on the lane's stream, behind the current stream's work. `signature`: peers must have
  // issued the same. `keep`: tensors to keep until the current stream is ordered behind the operation.
  WorkPtr enqueue(NcclLane& lane, OpInfo info, std::string signature, std::vector<at::Tensor> keep,
                  const std::function<void(cudaStream_t)>& call);

  // Lets NCCL use the memory of `block` in place until it is freed.
  void register_memory(const at::Tensor& block) { memory_->add(block); }

  void abort(AbortCause cause, std::string_view reason) { watchdog_->abort(cause, std::string(reason)); }
  AbortCause abort_cause() const { return watchdog_->abort_cause(); }

 private:
  class DeviceWork;

  NcclLane open_lane(const std::string& key);
  void abort_lanes();
  void settle();
  [[noreturn]] void throw_creation(const NcclFailure& failure) const;
  void throw_if_faulted(const NcclOperation& operation) const;
  void wait(const NcclOperation& operation, std::chrono::milliseconds timeout, bool blocking);
  c10::Stream current_stream() const { return device_.getStream(info_.device); }

  GroupInfo info_;
  const NcclApi& api_;
  c10::impl::VirtualGuardImpl device_{c10::kCUDA};
  std::unique_ptr<Watchdog> watchdog_;  // null until the lanes it watches are open
  NcclLane gathers_;
  NcclLane reduces_;
  std::shared_ptr<RegisteredMemory> memory_;
  uint64_t sequence_ = 0;
};

}  // namespace fsdp::detail
