// What ranks hold copies of: parameters that are whole on every rank, rows of a mesh, buffers.
#pragma once

#include <fsdp/sharded_model.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// Of the bytes of a tensor, wherever it is.
uint64_t hash_of(const at::Tensor& tensor);

// Throws c10::Error on every rank, naming rank and unit, where copies of parameters differ. Collective.
void compare_copies(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh);

// `tensor` becomes rank 0's. Sparse and quantized ones stay each rank's own.
void broadcast_from_0(const at::Tensor& tensor, Comm& comm);

void sync_buffers(const torch::nn::Module& module, Comm& comm, BufferSync how);

}  // namespace fsdp::detail
