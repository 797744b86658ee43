#include "models/fused.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "models/cuda/kernels.h"

namespace fsdp::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

std::atomic<bool> kernels_wanted = true;

at::Tensor rotate_by_operators(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

// The transposed rotation, which backward applies to gradients.
at::Tensor rotate_back_by_operators(const at::Tensor& grad, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = (grad * sin).chunk(2, -1);
  return grad * cos + at::cat({halves[1], -halves[0]}, -1);
}

class GatedSilu : public Function<GatedSilu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return kernels::gated_silu(gate, up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], grad = grads[0].contiguous();
    if (!at::GradMode::is_enabled() && kernels::can_gate(grad, gate) && kernels::can_gate(gate, up)) {
      auto [of_gate, of_up] = kernels::gated_silu_backward(grad, gate, up);
      return {of_gate, of_up};
    }
    if (!at::GradMode::is_enabled()) return {at::silu_backward(grad * up, gate), grad * at::silu(gate)};
    const at::Tensor slope = at::sigmoid(gate);
    return {grad * up * slope * (1 + gate * (1 - slope)), grad * at::silu(gate)};
  }
};

class Rotated : public Function<Rotated> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return kernels::rotate(x, cos, sin, /*back=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &cos = saved[0], &sin = saved[1];
    const bool fused = !at::GradMode::is_enabled() && kernels::can_rotate(grads[0], cos, sin);
    return {fused ? kernels::rotate(grads[0], cos, sin, /*back=*/true)
                  : rotate_back_by_operators(grads[0], cos, sin),
            {},
            {}};
  }
};

}  // namespace

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  return kernels_wanted && kernels::can_gate(gate, up) ? GatedSilu::apply(gate, up) : at::silu(gate) * up;
}

at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const bool fused =
      kernels_wanted && !cos.requires_grad() && !sin.requires_grad() && kernels::can_rotate(x, cos, sin);
  return fused ? Rotated::apply(x, cos, sin) : rotate_by_operators(x, cos, sin);
}

void use_kernels(bool yes) { kernels_wanted = yes; }

}  // namespace fsdp::models
