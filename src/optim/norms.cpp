// Norms of whole parameters and gradients, from the slices of all ranks.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fsdp/sharded_model.h>

#include <cmath>

#include "launch/in_call.h"
#include "runtime/model.h"
#include "watch/quiet.h"

namespace fsdp {
namespace detail {

namespace {

using PartOf = const at::Tensor& (*)(const UnitParam& param);

// [parameters] norms of this rank's parts alone, in fp64; 0 for undefined or empty parts.
at::Tensor norms_here(const Model& model, double p, PartOf part_of) {
  const auto real = at::TensorOptions().dtype(at::kDouble).device(model.world.device());
  std::vector<at::Tensor> norms;
  for (const UnitParam* param : model.params) {
    const at::Tensor& part = part_of(*param);
    norms.push_back(
        part.defined() && part.numel() > 0
            ? at::linalg_vector_norm(part, p, {}, false, part.is_complex() ? at::kComplexDouble : at::kDouble)
                  .to(model.world.device())
            : at::zeros({}, real));
  }
  return at::stack(norms);
}

// [parameters] true for those that are sharded over the row.
at::Tensor sharded_ones(const Model& model) {
  const at::Tensor host = at::empty({static_cast<int64_t>(model.params.size())}, at::kBool);
  bool* sharded = host.mutable_data_ptr<bool>();
  for (const UnitParam* param : model.params) *sharded++ = param->unit->ranks() > 1;
  return host.to(model.world.device());
}

// All ranks get the same bits: they add the same numbers in the same order.
at::Tensor norms_over_ranks(Model& model, double p, PartOf part_of, const char* label) {
  TORCH_CHECK(p > 0, "fsdp: ", label, " with p = ", p, "; it must be positive or infinity");
  const InCall call(model.world, std::string(label) + "()");
  for (const auto& unit : model.units) unit->before_touch();  // updates may be promised
  const Quiet quiet;
  const at::Tensor mine = norms_here(model, p, part_of);
  Comm& row = model.mesh.row;
  if (row.size() == 1) return mine;
  at::Tensor all = at::empty({row.size() * mine.numel()}, mine.options());
  row.all_gather(all, mine, label).wait();
  all = all.view({row.size(), -1});
  const at::Tensor over_ranks = std::isinf(p) ? all.amax(0) : all.pow(p).sum(0).pow(1.0 / p);
  return at::where(sharded_ones(model), over_ranks, mine);
}

}  // namespace
}  // namespace detail

at::Tensor ShardedModel::parameter_norms(double p) const {
  return detail::norms_over_ranks(
      detail::model_of(engine_), p,
      [](const detail::UnitParam& param) -> const at::Tensor& { return param.slice; }, "parameter_norms");
}

at::Tensor ShardedModel::gradient_norms(double p) const {
  return detail::norms_over_ranks(
      detail::model_of(engine_), p,
      [](const detail::UnitParam& param) -> const at::Tensor& { return param.slice.grad(); },
      "gradient_norms");
}

}  // namespace fsdp
