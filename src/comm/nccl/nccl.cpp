#include "comm/nccl/nccl.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/nccl/lanes.h"

namespace fsdp::detail {

namespace {

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

class NcclBackend final : public CommBackend {
 public:
  explicit NcclBackend(const GroupInfo& info)
      : info_(info), api_(*load_nccl().api), lanes_(info, *load_nccl().api) {}

  const char* name() const override { return "nccl"; }

  at::Tensor allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) override {
    at::Tensor block = at::zeros({numel}, at::TensorOptions().dtype(dtype).device(info_.device));
    if (info_.size > 1) lanes_.register_memory(block);
    return block;
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
  void abort(AbortCause cause, std::string_view reason) override { lanes_.abort(cause, reason); }
  AbortCause abort_cause() const override { return lanes_.abort_cause(); }

 private:
  class MessageWork;
  struct Posted;

  WorkPtr post(const at::Tensor& tensor, int peer, bool sending, OpInfo info);
  void launch_posted();

  GroupInfo info_;
  const NcclApi& api_;
  std::vector<std::shared_ptr<Posted>> posted_;
  NcclLanes lanes_;
};

std::string signature_of(const OpInfo& info, const at::Tensor& tensor, int argument) {
  return std::string(info.op) + " '" + info.label + "' of " + std::to_string(tensor.numel()) +
         " elements of " + to_string(to_dtype(tensor.scalar_type())) + " (argument " +
         std::to_string(argument) + ")";
}

WorkPtr NcclBackend::all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) {
  std::string signature = signature_of(info, slot, 0);
  return lanes_.enqueue(lanes_.gathers(), std::move(info), std::move(signature), {slot, shard},
                        [&](cudaStream_t stream) {
                          const int64_t n = shard.numel();
                          at::Tensor part = slot.view({-1}).narrow(0, info_.rank * n, n);
                          if (part.data_ptr() != shard.data_ptr()) part.copy_(shard.view({-1}));
                          lanes_.gathers().comm->run("ncclAllGather", [&](ncclComm_t comm) {
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
  return lanes_.enqueue(
      lanes_.reduces(), std::move(info), std::move(signature), {output, input}, [&](cudaStream_t stream) {
        const bool by_nccl = op == ReduceOp::average && scale == 1.0 && info_.size > 1;
        lanes_.reduces().comm->run("ncclReduceScatter", [&](ncclComm_t comm) {
          return api_.reduce_scatter(input.data_ptr(), output.data_ptr(), static_cast<size_t>(output.numel()),
                                     to_nccl(input.scalar_type()), by_nccl ? ncclAvg : ncclSum, comm, stream);
        });
        const double factor = op == ReduceOp::average ? scale / info_.size : scale;
        if (!by_nccl && factor != 1.0) at::Tensor(output).mul_(factor);
      });
}

WorkPtr NcclBackend::all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) {
  std::string signature = signature_of(info, tensor, static_cast<int>(op));
  return lanes_.enqueue(
      lanes_.reduces(), std::move(info), std::move(signature), {tensor}, [&](cudaStream_t stream) {
        const bool average = op == ReduceOp::average && info_.size > 1;
        lanes_.reduces().comm->run("ncclAllReduce", [&](ncclComm_t comm) {
          return api_.all_reduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                                 to_nccl(tensor.scalar_type()), average ? ncclAvg : ncclSum, comm, stream);
        });
      });
}

WorkPtr NcclBackend::broadcast(const at::Tensor& tensor, int root, OpInfo info) {
  std::string signature = signature_of(info, tensor, root);
  return lanes_.enqueue(
      lanes_.gathers(), std::move(info), std::move(signature), {tensor}, [&](cudaStream_t stream) {
        lanes_.gathers().comm->run("ncclBroadcast", [&](ncclComm_t comm) {
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
// Two ranks that each send before they receive would block each other on the device. So send() and recv()
// only post a message. The first wait for one that is not launched yet launches all messages posted since the
// last launch, as one NCCL group. Every Work is waited for, at the latest when it is dropped, so no message
// stays behind. Collectives issued between posting and launch come first on the stream.
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
  const WorkPtr work = lanes_.enqueue(
      lanes_.gathers(), first.info, signature_of(first.info, first.tensor, first.peer), keep,
      [&](cudaStream_t stream) {
        lanes_.gathers().comm->run_group("ncclSend/ncclRecv", [&](ncclComm_t comm) {
          for (const auto& one : batch) {
            void* data = one->tensor.data_ptr();
            const auto count = static_cast<size_t>(one->tensor.numel());
            const ncclDataType_t type = to_nccl(one->tensor.scalar_type());
            const ncclResult_t result = one->sending ? api_.send(data, count, type, one->peer, comm, stream)
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
