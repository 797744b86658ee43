#include <c10/util/Exception.h>

#include "models/cuda/kernels.h"

namespace fsdp::models::kernels {

bool can_gate(const at::Tensor& /*a*/, const at::Tensor& /*b*/) { return false; }
bool can_rotate(const at::Tensor& /*x*/, const at::Tensor& /*cos*/, const at::Tensor& /*sin*/) {
  return false;
}

namespace {
[[noreturn]] void none() { TORCH_CHECK(false, "fsdp::models: built without CUDA kernels"); }
}  // namespace

at::Tensor gated_silu(const at::Tensor& /*gate*/, const at::Tensor& /*up*/) { none(); }
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& /*grad*/, const at::Tensor& /*gate*/,
                                                      const at::Tensor& /*up*/) {
  none();
}
at::Tensor rotate(const at::Tensor& /*x*/, const at::Tensor& /*cos*/, const at::Tensor& /*sin*/,
                  bool /*back*/) {
  none();
}

}  // namespace fsdp::models::kernels
