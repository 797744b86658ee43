// Promise: kernels of models/fused.h have the bits of the operators they stand for.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "models/cuda/kernels.h"
#include "models/fused.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

Tensor gate_chain(const Tensor& gate, const Tensor& up) { return at::silu(gate) * up; }

Tensor rotary_chain(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

struct Result {
  Tensor value, first, second;  // and the gradients of the inputs
};

template <class Fn>
Result run(Fn fn, const Tensor& a, const Tensor& b, const Tensor& grad) {
  const auto x = a.detach().requires_grad_(true), y = b.detach().requires_grad_(true);
  const Tensor value = fn(x, y);
  value.backward(grad);
  return {value.detach(), x.grad(), y.grad()};
}

void require_equal(const Tensor& got, const Tensor& wanted, const std::string& what) {
  if (!wanted.defined()) return require(!got.defined(), what + " is not there");
  require(got.sizes() == wanted.sizes() && got.scalar_type() == wanted.scalar_type(), what + ": form");
  require(at::equal(got, wanted),
          what + " has equal bits; " + std::to_string(got.ne(wanted).sum().item<int64_t>()) + " differ");
}

void require_equal(const Result& got, const Result& wanted, const std::string& what) {
  require_equal(got.value, wanted.value, what);
  require_equal(got.first, wanted.first, what + ", first gradient");
  require_equal(got.second, wanted.second, what + ", second gradient");
}

constexpr auto kTypes = {at::kFloat, at::kHalf, at::kBFloat16};

TEST(GpuFused, GatesHaveTheBitsOfTheOperators) {
  run_on_gpus(1, [](World& world) {
    torch::manual_seed(1);
    for (const auto type : kTypes) {
      const auto options = at::TensorOptions(world.device()).dtype(type);
      for (const std::vector<int64_t>& size : {std::vector<int64_t>{3, 50, 256}, {1 << 20}, {16}}) {
        const Tensor gate = 4 * at::randn(size, options), up = at::randn(size, options);
        const Tensor grad = at::randn(size, options);
        require(models::kernels::can_gate(gate, up), "there is a kernel");
        require_equal(run(models::gated_silu, gate, up, grad), run(gate_chain, gate, up, grad),
                      c10::toString(type));
      }
    }
  });
}

TEST(GpuFused, RotationsHaveTheBitsOfTheOperators) {
  run_on_gpus(1, [](World& world) {
    torch::manual_seed(2);
    for (const auto type : kTypes) {
      const auto options = at::TensorOptions(world.device()).dtype(type);
      const int64_t batch = 3, time = 37, heads = 5;
      for (const int64_t dim : {16, 64, 128}) {
        const Tensor cos = at::randn({time, dim}, options), sin = at::randn({time, dim}, options);
        const Tensor grad = at::randn({batch, heads, time, dim}, options);
        for (const bool heads_outside : {false, true}) {
          const Tensor x = heads_outside ? at::randn({batch, heads, time, dim}, options)
                                         : at::randn({batch, time, heads, dim}, options).transpose(1, 2);
          require(models::kernels::can_rotate(x, cos, sin), "there is a kernel");
          const auto fused = [&](const Tensor& a, const Tensor&) {
            return models::rotate_halves(a, cos, sin);
          };
          const auto chain = [&](const Tensor& a, const Tensor&) { return rotary_chain(a, cos, sin); };
          require_equal(run(fused, x, x, grad), run(chain, x, x, grad), c10::toString(type));
        }
      }
    }
  });
}

// What no kernel takes goes through the operators.
TEST(GpuFused, OtherFormsAreComputedToo) {
  run_on_gpus(1, [](World& world) {
    const auto options = at::TensorOptions(world.device());
    const Tensor odd = at::randn({7, 3}, options), turned = at::randn({8, 16}, options).t();
    require_equal(models::gated_silu(odd, odd), gate_chain(odd, odd), "odd sizes");
    require_equal(models::gated_silu(turned, turned), gate_chain(turned, turned), "strides");
    const Tensor x = at::randn({1, 2, 3, 6}, options), table = at::randn({3, 6}, options);
    require_equal(models::rotate_halves(x, table, table), rotary_chain(x, table, table), "a small head");
    const Tensor none = at::randn({0, 16}, options);
    require_equal(models::gated_silu(none, none), none, "no elements");
  });
}

TEST(GpuFused, GradientsOfGradientsAreThoseOfTheOperators) {
  run_on_gpus(1, [](World& world) {
    torch::manual_seed(3);
    const auto options = at::TensorOptions(world.device());
    const auto slope = [](auto fn, const Tensor& a, const Tensor& b) {
      const auto x = a.detach().requires_grad_(true), y = b.detach().requires_grad_(true);
      const auto grads = torch::autograd::grad({fn(x, y).pow(2).sum()}, {x, y}, {}, std::nullopt,
                                               /*create_graph=*/true, /*allow_unused=*/true);
      grads[0].pow(2).sum().backward();
      return x.grad();
    };
    const Tensor a = at::randn({4, 64}, options), b = at::randn({4, 64}, options);
    require(at::allclose(slope(models::gated_silu, a, b), slope(gate_chain, a, b), 1e-4, 1e-4), "the gate");
    const Tensor x = at::randn({2, 3, 4, 64}, options);
    const auto fused = [&](const Tensor& q, const Tensor&) { return models::rotate_halves(q, a, b); };
    const auto chain = [&](const Tensor& q, const Tensor&) { return rotary_chain(q, a, b); };
    require(at::allclose(slope(fused, x, x), slope(chain, x, x), 1e-4, 1e-4), "the rotation");
  });
}

}  // namespace
}  // namespace fsdp::testing
