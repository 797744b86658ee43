// Launches of the CUDA kernels. Includes nothing of LibTorch, so that nvcc does not have to read it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::models::kernels {

enum class Type { fp32, fp16, bf16 };
constexpr int kBytesAtOnce = 16;  // of one row, by one thread: pointers and strides are multiples of it

// Strides, in elements, of [batch, head, time, head_dim]; the stride of head_dim is 1.
struct Strides {
  int64_t batch, head, time;
};

struct Rotation {
  const void* in;
  void* out;
  const void *cos, *sin;  // [time, head_dim]
  int64_t batch, heads, time, head_dim;
  Strides in_strides, out_strides;
  bool back;
};

// Each returns the error code of its launch.
cudaError_t launch_rotate(Type type, const Rotation& rotation, cudaStream_t stream);
cudaError_t launch_gated_silu(Type type, const void* gate, const void* up, void* out, int64_t elements,
                              cudaStream_t stream);
cudaError_t launch_gated_silu_backward(Type type, const void* grad, const void* gate, const void* up,
                                       void* of_gate, void* of_up, int64_t elements, cudaStream_t stream);

}  // namespace fsdp::models::kernels
