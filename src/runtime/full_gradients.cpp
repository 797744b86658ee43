#include "runtime/full_gradients.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fsdp::detail {

FullGradients::FullGradients(Model& model, const std::vector<Unit*>& units, const FullParamsOptions& options)
    : model_(model) {
  for (const Unit* unit : units)
    for (const auto& param : unit->params)
      grads_.push_back({.param = param.get(), .before = param->tensor.grad(), .used_by_any_rank = false});
  if (grads_.empty()) return;  // outer scopes have all units
  ask_ranks();
  for (const Unit* unit : units)
    for (const auto& region : unit->regions) gather(*region, options);
  if (parts_.empty()) return;
  for (const Grad& grad : grads_)
    grad.param->tensor.mutable_grad() =
        grad.used_by_any_rank ? grad.param->view_of(whole_of(*grad.param)) : at::Tensor();
}

// The program may have set .grad() of some ranks' slices only.
void FullGradients::ask_ranks() {
  at::Tensor counts = at::zeros({static_cast<int64_t>(grads_.size())}, at::kLong);
  auto* count = counts.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < grads_.size(); ++i) count[i] = grads_[i].param->slice.grad().defined() ? 1 : 0;
  counts = counts.to(model_.world.device());
  model_.mesh.all.all_reduce(counts, ReduceOp::sum, "gradients of full_params()").wait();
  counts = counts.cpu();
  count = counts.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < grads_.size(); ++i) grads_[i].used_by_any_rank = count[i] > 0;
}

void FullGradients::gather(UnitRegion& region, const FullParamsOptions& options) {
  const bool here = !options.rank0_only || model_.world.rank() == 0;
  const bool some = std::any_of(grads_.begin(), grads_.end(), [&](const Grad& grad) {
    return &grad.param->region() == &region && grad.used_by_any_rank;
  });
  const auto type = region.home.options().dtype(region.gradient_type());
  at::Tensor whole = at::empty({here && some ? region.spec.total() : 0}, type);
  if (some && region.spec.total() > 0) {
    const Unit& unit = *region.unit;
    const at::Tensor shard = at::zeros({region.spec.layout.shard_numel}, type);
    for (const auto& param : unit.params) {
      if (&param->region() != &region || !param->slice.grad().defined()) continue;
      const ShardRange own = unit.spec.layout.range(param->placement, model_.mesh.shard_index(unit.ranks()));
      shard.narrow(0, own.in_shard, own.size).copy_(param->slice.grad());
    }
    const std::optional<int> root = options.rank0_only ? std::optional(0) : std::nullopt;
    if (unit.ranks() == 1) {
      if (here) whole.copy_(shard);
    } else if (!root || model_.mesh.in_world(0) == 0) {
      gather_exactly(model_.mesh.row, shard, whole, root, unit.name() + ": whole gradients");
    }
  }
  if (here) parts_.push_back({.region = &region, .whole = options.offload ? whole.cpu() : whole});
}

const at::Tensor& FullGradients::whole_of(const UnitParam& param) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const Part& part) { return part.region == &param.region(); });
  return found->whole;
}

void FullGradients::close(bool write_back_) {
  for (const Grad& grad : grads_) {
    if (parts_.empty()) break;
    if (write_back_) write_back(*grad.param);
    grad.param->tensor.mutable_grad() = grad.before;
  }
}

// The values count, not the memory they are in: the program may have assigned another tensor.
void FullGradients::write_back(UnitParam& param) const {
  const at::Tensor given = param.tensor.grad();
  at::Tensor& own = param.slice.mutable_grad();
  if (!given.defined()) {
    own = at::Tensor();
    return;
  }
  if (given.sizes() != at::IntArrayRef(param.placement.param.shape)) {
    TORCH_WARN("fsdp: the gradient of parameter '", param.names.front(), "' was given the shape ",
               given.sizes(), " in full_params(); its values stay as they were");
    return;
  }
  const UnitRegion& region = param.region();
  const Unit& unit = *param.unit;
  const at::Tensor flat = at::empty({param.placement.numel}, given.options().dtype(region.gradient_type()));
  raw_view(flat, 0, param.placement.param.shape, param.strides).copy_(given.detach());
  const ShardRange range = unit.spec.layout.range(param.placement, model_.mesh.shard_index(unit.ranks()));
  const at::Tensor part = flat.narrow(0, range.start, range.size);
  if (own.defined())
    own.copy_(part);
  else
    own = part.to(region.spec.gradient_on_host ? c10::Device(at::kCPU) : region.shard.device(),
                  region.gradient_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace fsdp::detail
