// A module's buffers: every rank has its own.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/sharded_model.h>
#include <torch/nn/module.h>

namespace fsdp::detail {

// Sets `tensor` to rank 0's value. Sparse and quantized tensors stay each rank's own.
void broadcast_from_0(const at::Tensor& tensor, Comm& comm);

void sync_buffers(const torch::nn::Module& module, Comm& comm, BufferSync how);

}  // namespace fsdp::detail
