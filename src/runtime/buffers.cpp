#include "runtime/buffers.h"

#include "launch/in_call.h"
#include "runtime/model.h"
#include "watch/quiet.h"

namespace fsdp {

namespace detail {

void broadcast_from_0(const at::Tensor& tensor, Comm& comm) {
  const bool plain = tensor.layout() == at::kStrided && !tensor.is_quantized();
  if (comm.size() == 1 || tensor.numel() == 0 || !plain) return;
  const at::Tensor copy = tensor.detach().contiguous().clone();
  comm.broadcast(copy.view({-1}).view(at::kByte), 0, "buffers").wait();
  tensor.detach().copy_(copy);
}

void sync_buffers(const torch::nn::Module& module, Comm& comm, BufferSync how) {
  const Quiet quiet;
  for (const at::Tensor& buffer : module.buffers()) {
    if (how == BufferSync::broadcast || !buffer.is_floating_point() || buffer.layout() != at::kStrided) {
      broadcast_from_0(buffer, comm);
      continue;
    }
    if (comm.size() == 1 || buffer.numel() == 0) continue;
    const at::Tensor copy = buffer.detach().contiguous().clone().view({-1});
    comm.all_reduce(copy, ReduceOp::average, "buffers").wait();
    buffer.detach().copy_(copy.view(buffer.sizes()));
  }
}

}  // namespace detail

void ShardedModel::sync_buffers(BufferSync how) {
  detail::Model& model = detail::model_of(engine_);
  const detail::InCall call(model.world, "sync_buffers()");
  detail::sync_buffers(model.module, model.mesh.all, how);
}

}  // namespace fsdp
