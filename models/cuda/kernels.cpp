#include "models/cuda/kernels.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "models/cuda/launch.h"

namespace fsdp::models::kernels {
namespace {

constexpr int64_t kMostPacks = int64_t{1} << 31;

bool known(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return tensor.is_cuda() && tensor.layout() == at::kStrided && tensor.numel() > 0 && !tensor.is_neg() &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

bool on_boundary(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kBytesAtOnce == 0;
}

int64_t at_once(const at::Tensor& tensor) { return kBytesAtOnce / tensor.element_size(); }

Type type_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Type::fp32;
  return tensor.scalar_type() == at::kHalf ? Type::fp16 : Type::bf16;
}

cudaStream_t stream_of(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  return static_cast<cudaStream_t>(guard.getStreamNativeHandle(guard.getStream(tensor.device())));
}

void check(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess,
              "fsdp::models: a kernel could not be launched: ", cudaGetErrorString(error));
}

Strides strides_of(const at::Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

}  // namespace

bool can_gate(const at::Tensor& a, const at::Tensor& b) {
  const auto fits = [](const at::Tensor& tensor) {
    return known(tensor) && tensor.is_contiguous() && on_boundary(tensor);
  };
  return fits(a) && fits(b) && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.numel() % at_once(a) == 0 && a.numel() / at_once(a) < kMostPacks;
}

bool can_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (!known(x) || !on_boundary(x) || x.dim() != 4 || x.stride(3) != 1) return false;
  const int64_t pack = at_once(x);
  for (int dim = 0; dim < 3; ++dim)
    if (x.stride(dim) % pack != 0) return false;
  if (x.size(3) % (2 * pack) != 0 || x.numel() / (2 * pack) >= kMostPacks) return false;
  const auto fits = [&](const at::Tensor& table) {
    return table.is_contiguous() && on_boundary(table) && table.scalar_type() == x.scalar_type() &&
           table.device() == x.device() && table.sizes() == at::IntArrayRef{x.size(2), x.size(3)};
  };
  return fits(cos) && fits(sin);
}

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  const c10::DeviceGuard guard(gate.device());
  at::Tensor out = at::empty_like(gate);
  check(launch_gated_silu(type_of(gate), gate.const_data_ptr(), up.const_data_ptr(), out.mutable_data_ptr(),
                          gate.numel(), stream_of(gate)));
  return out;
}

std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                      const at::Tensor& up) {
  const c10::DeviceGuard guard(gate.device());
  at::Tensor of_gate = at::empty_like(gate), of_up = at::empty_like(up);
  check(launch_gated_silu_backward(type_of(gate), grad.const_data_ptr(), gate.const_data_ptr(),
                                   up.const_data_ptr(), of_gate.mutable_data_ptr(), of_up.mutable_data_ptr(),
                                   gate.numel(), stream_of(gate)));
  return {of_gate, of_up};
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const c10::DeviceGuard guard(x.device());
  // The memory order is [batch, time, head, head_dim], as projections leave it and attention takes it.
  at::Tensor out = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  check(launch_rotate(type_of(x),
                      {x.const_data_ptr(), out.mutable_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(),
                       x.size(0), x.size(1), x.size(2), x.size(3), strides_of(x), strides_of(out), back},
                      stream_of(x)));
  return out;
}

}  // namespace fsdp::models::kernels
