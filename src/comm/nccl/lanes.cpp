#include "comm/nccl/lanes.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "comm/await.h"

namespace fsdp::detail {

namespace {

constexpr std::chrono::microseconds kSpin{500};  // then a blocking wait sleeps between polls
constexpr const char* kIdKey = "nccl_id";

cudaStream_t raw(const c10::Stream& stream) {
  return static_cast<cudaStream_t>(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamNativeHandle(stream));
}

}  // namespace

NcclLanes::NcclLanes(const GroupInfo& info, const NcclApi& api)
    : info_(info),
      api_(api),
      gathers_(open_lane(std::string(kIdKey) + "/gathers")),
      reduces_(open_lane(std::string(kIdKey) + "/reduces")) {
  watchdog_ = std::make_unique<Watchdog>(
      info_, Watchdog::Hooks{.async_error =
                                 [this] {
                                   const std::string first = gathers_.comm->async_error();
                                   return first.empty() ? reduces_.comm->async_error() : first;
                                 },
                             .on_fault = [this] { abort_lanes(); }});
  memory_ = std::make_shared<RegisteredMemory>(
      std::vector<NcclCommunicator*>{gathers_.comm.get(), reduces_.comm.get()}, [this] { settle(); });
}

// Aborts both at once: aborting a communicator frees memory, which waits for the device, where a kernel of
// the other one may hang until that is aborted too.
void NcclLanes::abort_lanes() {
  std::thread other([this] { gathers_.comm->abort(); });
  reduces_.comm->abort();
  other.join();
}

// The device may still run our kernels: waits for them, unless the group has failed and they have been made
// to return.
NcclLanes::~NcclLanes() {
  try {
    memory_->leave();
    settle();
  } catch (const std::exception& error) {
    watchdog_->report_device_error(error);
  }
  watchdog_.reset();
}

void NcclLanes::settle() {
  if (watchdog_->faulted()) return;
  device_.synchronizeStream(gathers_.stream);
  device_.synchronizeStream(reduces_.stream);
}

NcclLane NcclLanes::open_lane(const std::string& key) {
  ncclUniqueId id{};
  if (info_.rank == 0) {
    const ncclResult_t made = api_.get_unique_id(&id);
    TORCH_CHECK(made == ncclSuccess, "fsdp: ncclGetUniqueId: ", api_.error_string(made));
    publish_key(info_, key, std::string(reinterpret_cast<const char*>(&id), sizeof(id)));
  } else {
    const std::string bytes = await_key(info_, key, 0);
    TORCH_CHECK(bytes.size() == sizeof(id), "fsdp: rank 0 runs another NCCL");
    std::memcpy(&id, bytes.data(), sizeof(id));
  }
  device_.setDevice(info_.device);
  try {
    auto comm = std::make_unique<NcclCommunicator>(api_, id, info_.rank, info_.size, info_.options.timeout,
                                                   [this] { return watchdog_ && watchdog_->faulted(); });
    return {std::move(comm), device_.getStreamFromGlobalPool(info_.device, /*isHighPriority=*/true)};
  } catch (const NcclFailure& failure) {
    throw_creation(failure);
  }
}

void NcclLanes::throw_creation(const NcclFailure& failure) const {
  throw CommError({.fault = CommFault::backend,
                   .rank = world_rank(info_, info_.rank),
                   .culprit = -1,
                   .op = "create",
                   .label = "nccl",
                   .sequence = 0,
                   .elapsed = {},
                   .reason = failure.what() + creation_advice(failure.result())});
}

void NcclLanes::throw_if_faulted(const NcclOperation& operation) const {
  if (auto error = watchdog_->fault(operation)) throw CommError(*error);
}

void NcclLanes::wait(const NcclOperation& operation, std::chrono::milliseconds timeout, bool blocking) {
  throw_if_faulted(operation);
  operation.done->block(current_stream());
  if (!blocking) return;
  const auto start = Clock::now();
  while (!operation.done->query()) {
    throw_if_faulted(operation);
    if (elapsed_since(start) > timeout) {
      watchdog_->report_late(operation);
      throw_if_faulted(operation);
    }
    if (Clock::now() - start > kSpin)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    else
      std::this_thread::yield();
  }
  throw_if_faulted(operation);
}

class NcclLanes::DeviceWork final : public PendingWork {
 public:
  DeviceWork(NcclLanes& lanes, NcclOperation operation, std::vector<at::Tensor> keep)
      : lanes_(lanes), operation_(std::move(operation)), keep_(std::move(keep)) {}
  void wait(std::chrono::milliseconds timeout, bool blocking) override {
    lanes_.wait(operation_, timeout, blocking);
  }

 private:
  NcclLanes& lanes_;
  NcclOperation operation_;
  std::vector<at::Tensor> keep_;  // until the current stream is ordered behind the operation
};

WorkPtr NcclLanes::enqueue(NcclLane& lane, OpInfo info, std::string signature, std::vector<at::Tensor> keep,
                           const std::function<void(cudaStream_t)>& call) {
  NcclOperation operation{
      .info = std::move(info), .sequence = sequence_++, .signature = std::move(signature), .done = nullptr};
  throw_if_faulted(operation);
  watchdog_->begin(operation);
  c10::Event ready(c10::kCUDA);
  ready.record(current_stream());
  ready.block(lane.stream);
  {
    const c10::StreamGuard guard(lane.stream);
    try {
      call(raw(lane.stream));
    } catch (const NcclFailure& failure) {
      watchdog_->report_failure(failure.what());
      throw_if_faulted(operation);
    }
    operation.done = std::make_shared<c10::Event>(c10::kCUDA);
    operation.done->record(lane.stream);
  }
  watchdog_->enqueued(operation.sequence, operation.done);
  return std::make_shared<DeviceWork>(*this, std::move(operation), std::move(keep));
}

}  // namespace fsdp::detail
