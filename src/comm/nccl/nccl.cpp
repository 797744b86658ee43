#include "comm/nccl/nccl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "comm/await.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/watchdog.h"

namespace fsdp::detail {

namespace {

constexpr std::chrono::microseconds kSpin{500};  // before a blocking wait sleeps between looks
constexpr const char* kIdKey = "nccl_id";

ncclDataType_t to_nccl(at::ScalarType type) {
  switch (to_dtype(type)) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
  }
  return ncclUint8;
}

// One communicator and the stream its kernels run on.
struct Lane {
  std::unique_ptr<NcclCommunicator> comm;
  c10::Stream stream;
};

class NcclBackend final : public CommBackend {
 public:
  explicit NcclBackend(const GroupInfo& info);
  ~NcclBackend() override;

  const char* name() const override { return "nccl"; }

  at::Tensor allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) override {
    return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(info_.device));
  }

  WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                         OpInfo info) override;
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) override;
  WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) override {
    return post(tensor, to, true, std::move(info));
  }
  WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) override {
    return post(tensor, from, false, std::move(info));
  }
  WorkPtr barrier(OpInfo info) override;
  void abort(AbortCause cause, std::string_view reason) override {
    watchdog_->abort(cause, std::string(reason));
  }
  AbortCause abort_cause() const override { return watchdog_->abort_cause(); }

 private:
  class DeviceWork;
  class MessageWork;
  struct Posted;

  Lane open_lane(const std::string& key);
  void abort_lanes();
  [[noreturn]] void throw_creation(const NcclFailure& failure) const;
  // Enqueues `call` on the lane's stream behind what the current stream holds.
  template <class Call>
  WorkPtr enqueue(Lane& lane, OpInfo info, std::string signature, std::vector<at::Tensor> keep, Call call);
  WorkPtr post(const at::Tensor& tensor, int peer, bool sending, OpInfo info);
  void launch_posted();
  void throw_if_faulted(const InFlight& operation) const;
  void wait(const InFlight& operation, std::chrono::milliseconds timeout, bool blocking);
  c10::Stream current_stream() const { return device_.getStream(info_.device); }
  static cudaStream_t raw(const c10::Stream& stream) {
    return static_cast<cudaStream_t>(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamNativeHandle(stream));
  }

  GroupInfo info_;
  const NcclApi& api_;
  c10::impl::VirtualGuardImpl device_{c10::kCUDA};
  std::unique_ptr<Watchdog> watchdog_;  // null until the lanes it looks after are open
  Lane gathers_;  // all_gather, broadcast, messages: runs beside a reduce of the unit before
  Lane reduces_;  // reduce_scatter, all_reduce, barrier
  std::vector<std::shared_ptr<Posted>> posted_;
  uint64_t sequence_ = 0;
};

std::string signature_of(const OpInfo& info, const at::Tensor& tensor, int argument) {
  return std::string(info.op) + " '" + info.label + "' of " + std::to_string(tensor.numel()) +
         " elements of " + to_string(to_dtype(tensor.scalar_type())) + " (argument " +
         std::to_string(argument) + ")";
}

NcclBackend::NcclBackend(const GroupInfo& info)
    : info_(info),
      api_(*load_nccl().api),
      gathers_(open_lane(std::string(kIdKey) + "/gathers")),
      reduces_(open_lane(std::string(kIdKey) + "/reduces")) {
  watchdog_ = std::make_unique<Watchdog>(
      info_, Watchdog::Hooks{.async_error =
                                 [this] {
                                   const std::string first = gathers_.comm->async_error();
                                   return first.empty() ? reduces_.comm->async_error() : first;
                                 },
                             .on_fault = [this] { abort_lanes(); }});
}

// Both at once: aborting a communicator frees memory, which waits for the device, where a kernel of the other
// one may hang until that is aborted too.
void NcclBackend::abort_lanes() {
  std::thread other([this] { gathers_.comm->abort(); });
  reduces_.comm->abort();
  other.join();
}

// The device may still run our kernels: wait for them unless the group has failed, when they have been made
// to return.
NcclBackend::~NcclBackend() {
  if (!watchdog_->faulted()) {
    device_.synchronizeStream(gathers_.stream);
    device_.synchronizeStream(reduces_.stream);
  }
  watchdog_.reset();
}

Lane NcclBackend::open_lane(const std::string& key) {
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

void NcclBackend::throw_creation(const NcclFailure& failure) const {
  throw CommError({.fault = CommFault::backend,
                   .rank = world_rank(info_, info_.rank),
                   .culprit = -1,
                   .op = "create",
                   .label = "nccl",
                   .sequence = 0,
                   .elapsed = {},
                   .reason = failure.what() + creation_advice(failure.result())});
}

void NcclBackend::throw_if_faulted(const InFlight& operation) const {
  if (auto error = watchdog_->fault(operation)) throw CommError(*error);
}

void NcclBackend::wait(const InFlight& operation, std::chrono::milliseconds timeout, bool blocking) {
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

class NcclBackend::DeviceWork final : public PendingWork {
 public:
  DeviceWork(NcclBackend& backend, InFlight operation, std::vector<at::Tensor> keep)
      : backend_(backend), operation_(std::move(operation)), keep_(std::move(keep)) {}
  void wait(std::chrono::milliseconds timeout, bool blocking) override {
    backend_.wait(operation_, timeout, blocking);
  }

 private:
  NcclBackend& backend_;
  InFlight operation_;
  std::vector<at::Tensor> keep_;  // until the current stream is ordered behind the operation
};

template <class Call>
WorkPtr NcclBackend::enqueue(Lane& lane, OpInfo info, std::string signature, std::vector<at::Tensor> keep,
                             Call call) {
  InFlight operation{
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

WorkPtr NcclBackend::all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) {
  std::string signature = signature_of(info, slot, 0);
  return enqueue(gathers_, std::move(info), std::move(signature), {slot, shard}, [&](cudaStream_t stream) {
    const int64_t n = shard.numel();
    at::Tensor part = slot.view({-1}).narrow(0, info_.rank * n, n);
    if (part.data_ptr() != shard.data_ptr()) part.copy_(shard.view({-1}));
    gathers_.comm->run("ncclAllGather", [&](ncclComm_t comm) {
      return api_.all_gather(part.data_ptr(), slot.data_ptr(), static_cast<size_t>(n),
                             to_nccl(slot.scalar_type()), comm, stream);
    });
  });
}

// Note [Averages] ncclAvg divides wrongly in a group of one, and a scale other than one needs a pass of its
// own anyway.
WorkPtr NcclBackend::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                    double scale, OpInfo info) {
  std::string signature = signature_of(info, input, static_cast<int>(op));
  return enqueue(reduces_, std::move(info), std::move(signature), {output, input}, [&](cudaStream_t stream) {
    const bool by_nccl = op == ReduceOp::average && scale == 1.0 && info_.size > 1;
    reduces_.comm->run("ncclReduceScatter", [&](ncclComm_t comm) {
      return api_.reduce_scatter(input.data_ptr(), output.data_ptr(), static_cast<size_t>(output.numel()),
                                 to_nccl(input.scalar_type()), by_nccl ? ncclAvg : ncclSum, comm, stream);
    });
    const double factor = op == ReduceOp::average ? scale / info_.size : scale;
    if (!by_nccl && factor != 1.0) at::Tensor(output).mul_(factor);
  });
}

WorkPtr NcclBackend::all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) {
  std::string signature = signature_of(info, tensor, static_cast<int>(op));
  return enqueue(reduces_, std::move(info), std::move(signature), {tensor}, [&](cudaStream_t stream) {
    const bool average = op == ReduceOp::average && info_.size > 1;
    reduces_.comm->run("ncclAllReduce", [&](ncclComm_t comm) {
      return api_.all_reduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                             to_nccl(tensor.scalar_type()), average ? ncclAvg : ncclSum, comm, stream);
    });
  });
}

WorkPtr NcclBackend::broadcast(const at::Tensor& tensor, int root, OpInfo info) {
  std::string signature = signature_of(info, tensor, root);
  return enqueue(gathers_, std::move(info), std::move(signature), {tensor}, [&](cudaStream_t stream) {
    gathers_.comm->run("ncclBroadcast", [&](ncclComm_t comm) {
      return api_.broadcast(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                            to_nccl(tensor.scalar_type()), root, comm, stream);
    });
  });
}

WorkPtr NcclBackend::barrier(OpInfo info) {
  const at::Tensor token = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(info_.device));
  return all_reduce(token, ReduceOp::sum, std::move(info));
}

// Note [NCCL messages]
// Messages posted together are launched together, at the first wait for one of them or the next time
// something is posted after a launch: two ranks that each send before they receive would otherwise block each
// other on the device.
struct NcclBackend::Posted {
  at::Tensor tensor;
  int peer;
  bool sending;
  OpInfo info;
  WorkPtr launched;
};

class NcclBackend::MessageWork final : public PendingWork {
 public:
  MessageWork(NcclBackend& backend, std::shared_ptr<Posted> posted)
      : backend_(backend), posted_(std::move(posted)) {}
  void wait(std::chrono::milliseconds timeout, bool blocking) override {
    if (!posted_->launched) backend_.launch_posted();
    posted_->launched->wait(timeout, blocking);
  }

 private:
  NcclBackend& backend_;
  std::shared_ptr<Posted> posted_;
};

WorkPtr NcclBackend::post(const at::Tensor& tensor, int peer, bool sending, OpInfo info) {
  posted_.push_back(std::make_shared<Posted>(Posted{tensor, peer, sending, std::move(info), nullptr}));
  return std::make_shared<MessageWork>(*this, posted_.back());
}

void NcclBackend::launch_posted() {
  const auto batch = std::exchange(posted_, {});
  std::vector<at::Tensor> keep;
  for (const auto& one : batch) keep.push_back(one->tensor);
  const auto& first = *batch.front();
  const WorkPtr work = enqueue(gathers_, first.info, signature_of(first.info, first.tensor, first.peer), keep,
                               [&](cudaStream_t stream) {
                                 gathers_.comm->run_group("ncclSend/ncclRecv", [&](ncclComm_t comm) {
                                   for (const auto& one : batch) {
                                     void* data = one->tensor.data_ptr();
                                     const auto count = static_cast<size_t>(one->tensor.numel());
                                     const ncclDataType_t type = to_nccl(one->tensor.scalar_type());
                                     const ncclResult_t result =
                                         one->sending ? api_.send(data, count, type, one->peer, comm, stream)
                                                      : api_.recv(data, count, type, one->peer, comm, stream);
                                     if (result != ncclSuccess && result != ncclInProgress) return result;
                                   }
                                   return ncclSuccess;
                                 });
                               });
  for (const auto& one : batch) one->launched = work;
}

}  // namespace

bool nccl_available() { return load_nccl().api != nullptr && c10::impl::hasDeviceGuardImpl(c10::kCUDA); }

std::string nccl_unavailable_reason() {
  if (load_nccl().api == nullptr) return load_nccl().reason;
  return "this process has no CUDA: libtorch_cuda is not loaded or no driver was found";
}

std::unique_ptr<CommBackend> make_nccl(const GroupInfo& info) { return std::make_unique<NcclBackend>(info); }

}  // namespace fsdp::detail
