#include "models/rotary.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "models/fused.h"

namespace fsdp::models {
namespace {

RotaryTables make_tables(int64_t time, int64_t head_dim, double theta, at::Device device) {
  // A later backward may need the kept tables; it refuses tensors made in inference mode.
  c10::InferenceMode normal(false);
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const auto exponents = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  const auto frequencies = at::pow(theta, exponents).reciprocal();           // [head_dim / 2]
  const auto angles = at::arange(time, options).unsqueeze(1) * frequencies;  // [time, head_dim / 2]
  const auto both_halves = at::cat({angles, angles}, -1);                    // [time, head_dim]
  return {both_halves.cos(), both_halves.sin()};
}

}  // namespace

at::Tensor apply_rotary(const at::Tensor& x, const RotaryTables& tables) {
  return rotate_halves(x, tables.cos, tables.sin);
}

RotaryTables RotaryEmbedding::tables(int64_t time, const at::Tensor& like) {
  const auto& cos = kept_.cos;
  if (!cos.defined() || cos.size(0) < time || cos.device() != like.device()) {
    kept_ = make_tables(time, head_dim_, theta_, like.device());
  }
  return {kept_.cos.narrow(0, 0, time).to(like.scalar_type()),
          kept_.sin.narrow(0, 0, time).to(like.scalar_type())};
}

}  // namespace fsdp::models
