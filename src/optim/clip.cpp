// Gradient clipping over all shards.
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <fsdp/sharded_model.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cpu/square_sum.h"
#include "launch/in_call.h"
#include "optim/clip.h"
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

// The sum of squares of fp32 gradients in host memory. LibTorch's norm would copy each of them to fp64 first.
class HostSquares {
 public:
  // Returns false if `gradient` is another kind of tensor.
  bool add(const at::Tensor& gradient) {
    if (!gradient.is_cpu() || gradient.scalar_type() != at::kFloat || !gradient.is_contiguous()) return false;
    const float* values = gradient.const_data_ptr<float>();
    for (int64_t at = 0; at < gradient.numel(); at += kPiece)
      pieces_.emplace_back(values + at, std::min(kPiece, gradient.numel() - at));
    return true;
  }

  // The same bits on any number of threads.
  double sum() const {
    std::vector<double> sums(pieces_.size());
    at::parallel_for(0, std::ssize(pieces_), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        sums[i] = square_sum(pieces_[i].first, static_cast<size_t>(pieces_[i].second));
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  }

 private:
  static constexpr int64_t kPiece = 1 << 16;
  std::vector<std::pair<const float*, int64_t>> pieces_;
};

// The sum of powers of the gradients' norms, which ranks can add; for infinity the largest norm. It takes few
// kernels: a device has thousands of parameters.
at::Tensor local_norm(const Model& model, double p, bool sharded) {
  HostSquares squares;
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;  // by the type of their norms
  for (const UnitParam* param : model.params) {
    const at::Tensor& grad = param->slice.grad();
    if (!grad.defined() || grad.numel() == 0 || (param->unit->ranks() > 1) != sharded) continue;
    if (p == 2 && squares.add(grad)) continue;
    gradients[grad.is_complex() ? at::kComplexDouble : at::kDouble].push_back(grad);
  }
  std::vector<at::Tensor> norms;
  for (const auto& [type, list] : gradients)
    for (at::Tensor& norm : at::_foreach_norm(list, p, type)) norms.push_back(std::move(norm));
  const at::Device device = model.world.device();
  const at::Tensor total =
      at::full({1}, squares.sum(), at::TensorOptions().dtype(at::kDouble).device(device));
  if (norms.empty()) return total;
  const at::Tensor all = at::stack(norms);
  return std::isinf(p) ? all.max().view({1}).to(device) : total + all.pow(p).sum().to(device);
}

// The dtype of the norm: fp64 if a parameter is, else fp32.
at::ScalarType norm_dtype(const Model& model) {
  for (const UnitParam* param : model.params)
    if (c10::toRealValueType(param->slice.scalar_type()) == at::kDouble) return at::kDouble;
  return at::kFloat;
}

// The norm over the ranks of a row, which hold one replica of the model together.
at::Tensor row_norm(Model& model, double p, const char* label) {
  at::Tensor total = local_norm(model, p, true);
  Comm& row = model.mesh.row;
  if (row.size() > 1) {
    const at::Tensor all = at::empty({row.size()}, total.options());
    row.all_gather(all, total, label).wait();
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

// `label`: the call that it is for.
at::Tensor total_norm(Model& model, double norm_type, const char* label) {
  TORCH_CHECK(norm_type > 0, "fsdp: ", label, " with norm_type ", norm_type,
              "; it must be positive or infinity");
  TORCH_CHECK(!model.host || !model.host->stepper, "fsdp: ", label,
              " with AdamW::step_in_backward(), which has used the gradients already");
  const InCall in_call(model.world, std::string(label) + "()");
  for (const auto& unit : model.units) unit->before_touch();  // a promised update may read the gradients
  const Quiet quiet;
  return model.mode ? ordered_norm(model, norm_type) : row_norm(model, norm_type, label);
}

at::Tensor clip_norm(Model& model, double max_norm, double norm_type) {
  const at::Tensor total = total_norm(model, norm_type, "clip_grad_norm_");
  const Quiet quiet;
  const std::vector<at::Tensor> gradients = gradients_of(model);
  if (gradients.empty()) return total;
  const at::Tensor here = clip_factor(total, max_norm).to(gradients.front().device());
  // In host memory the factor is known, so a needless pass over all gradients can be skipped.
  if (!here.is_cpu() || !(here.item<double>() == 1.0)) at::_foreach_mul_(gradients, here);
  return total;
}

}  // namespace

at::Tensor clip_factor(const at::Tensor& total_norm, double max_norm) {
  return (max_norm / (total_norm + 1e-6)).clamp_max(1.0).squeeze();
}

}  // namespace detail

at::Tensor ShardedModel::get_total_norm(double norm_type) {
  return detail::total_norm(detail::model_of(engine_), norm_type, "get_total_norm");
}

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
