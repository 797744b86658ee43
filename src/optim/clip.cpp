// Gradient clipping over all shards.
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fsdp/sharded_model.h>

#include <cmath>
#include <map>
#include <vector>

#include "launch/in_call.h"
#include "runtime/model.h"
#include "watch/quiet.h"

namespace fsdp {
namespace detail {

namespace {

std::vector<at::Tensor> gradients_of(const Model& model) {
  std::vector<at::Tensor> gradients;
  for (const UnitParam* param : model.params)
    if (param->slice.grad().defined()) gradients.push_back(param->slice.grad());
  return gradients;
}

// The sum of powers of the gradients' norms, which ranks can add; for infinity the largest norm. It takes few
// kernels: a device has thousands of parameters.
at::Tensor local_norm(const Model& model, double p, bool sharded) {
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;  // by the type of their norms
  for (const UnitParam* param : model.params) {
    const at::Tensor& grad = param->slice.grad();
    if (!grad.defined() || grad.numel() == 0 || (param->unit->ranks() > 1) != sharded) continue;
    gradients[grad.is_complex() ? at::kComplexDouble : at::kDouble].push_back(grad);
  }
  std::vector<at::Tensor> norms;
  for (const auto& [type, list] : gradients)
    for (at::Tensor& norm : at::_foreach_norm(list, p, type)) norms.push_back(std::move(norm));
  if (norms.empty())
    return at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(model.world.device()));
  const at::Tensor all = at::stack(norms);
  return (std::isinf(p) ? all.max() : all.pow(p).sum()).view({1}).to(model.world.device());
}

// The dtype of the norm: fp64 if a parameter is, else fp32.
at::ScalarType norm_dtype(const Model& model) {
  for (const UnitParam* param : model.params)
    if (c10::toRealValueType(param->slice.scalar_type()) == at::kDouble) return at::kDouble;
  return at::kFloat;
}

// The norm over the ranks of a row, which hold one replica of the model together.
at::Tensor norm_of(Model& model, double p) {
  at::Tensor total = local_norm(model, p, true);
  Comm& row = model.mesh.row;
  if (row.size() > 1) {
    const at::Tensor all = at::empty({row.size()}, total.options());
    row.all_gather(all, total, "clip_grad_norm_").wait();
    total = std::isinf(p) ? all.max() : all.sum();
  }
  const at::Tensor whole = local_norm(model, p, false);
  total = std::isinf(p) ? total.maximum(whole) : (total + whole).pow(1.0 / p);
  return total.squeeze().to(norm_dtype(model));
}

// See Note [Reproducible].
at::Tensor ordered_norm(Model& model, double p) {
  const double total = model.mode->norm_sum(model.units, model.mesh, p);
  return at::full({}, std::isinf(p) ? total : std::pow(total, 1.0 / p),
                  at::TensorOptions().dtype(norm_dtype(model)).device(model.world.device()));
}

at::Tensor clip_norm(Model& model, double max_norm, double norm_type) {
  TORCH_CHECK(norm_type > 0, "fsdp: clip_grad_norm_ with norm_type ", norm_type,
              "; it must be positive or infinity");
  TORCH_CHECK(!model.host || !model.host->stepper,
              "fsdp: clip_grad_norm_ with AdamW::step_in_backward(), which has used the gradients already");
  const InCall in_call(model.world, "clip_grad_norm_()");
  for (const auto& unit : model.units) unit->before_touch();  // a promised update may read the gradients
  const Quiet quiet;
  const at::Tensor total = model.mode ? ordered_norm(model, norm_type) : norm_of(model, norm_type);
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  const std::vector<at::Tensor> gradients = gradients_of(model);
  if (gradients.empty()) return total;
  const at::Tensor here = factor.squeeze().to(gradients.front().device());
  // In host memory the factor is known, so a needless pass over all gradients can be skipped.
  if (!here.is_cpu() || !(here.item<double>() == 1.0)) at::_foreach_mul_(gradients, here);
  return total;
}

}  // namespace
}  // namespace detail

at::Tensor ShardedModel::clip_grad_norm_(double max_norm, double norm_type) {
  return detail::clip_norm(detail::model_of(engine_), max_norm, norm_type);
}

void ShardedModel::clip_grad_value_(double clip_value) {
  const detail::Model& model = detail::model_of(engine_);
  TORCH_CHECK(!model.host || !model.host->stepper,
              "fsdp: clip_grad_value_ with AdamW::step_in_backward(), which has used the gradients already");
  for (const auto& unit : model.units) unit->before_touch();
  const detail::Quiet quiet;
  for (auto& slice : parameters())
    if (slice.grad().defined()) slice.mutable_grad().clamp_(-clip_value, clip_value);
}

}  // namespace fsdp
