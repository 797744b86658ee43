// A module's buffers, of which every rank has its own.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/sharded_model.h>
#include <torch/nn/module.h>

namespace fsdp::detail {

// `tensor` becomes rank 0's. Sparse and quantized ones stay each rank's own.
void broadcast_from_0(const at::Tensor& tensor, Comm& comm);

void sync_buffers(const torch::nn::Module& module, Comm& comm, BufferSync how);

}  // namespace fsdp::detail
