#include "runtime/gradient_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "runtime/observer.h"

namespace fsdp::detail {

// Note [Gradient shards]
// On the CPU a gradient shard stays once it was made: fresh pages are dear. On a GPU it belongs to the
// slices' .grad() and goes with them, at zero_grad(), so that it is not there when activations are at their
// peak; its padding, which nobody reads, is cleared on the CPU only.
void GradientShards::make(UnitRegion& region) {
  if (region.gradient.defined()) return;
  if (auto storage = region.last_gradient.lock(); storage && region.gradient_type == region.master) {
    region.gradient = raw_view(region.shard, 0, region.shard.sizes(), {1});
    region.gradient.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  } else {
    const auto options = region.shard.options().dtype(region.gradient_type);
    const at::Tensor fresh =
        device_.is_cpu() ? at::zeros_like(region.shard, options) : at::empty_like(region.shard, options);
    region.gradient_tag = mark(fresh, TagKind::gradient, &region);
    region.gradient = watched(fresh);
    region.last_gradient = c10::weak_intrusive_ptr(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(region.gradient.storage().unsafeGetStorageImpl()));
  }
  cut(region);
}

void GradientShards::cut(UnitRegion& region) const {
  for (const auto& param : region.unit->params) {
    if (&param->region() != &region) continue;
    const ShardRange range =
        region.unit->layout.range(param->place, region.unit->layout.ranks > 1 ? mesh_.row.rank() : 0);
    param->gradient_slice = raw_view(region.gradient, range.in_shard, {range.size}, {1});
  }
}

// On a GPU the sum's own memory becomes the shard; see Note [Gradient shards].
void GradientShards::take(UnitRegion& region, const at::Tensor& sum, double scale) {
  const bool as_it_is = !device_.is_cpu() && sum.defined() && sum.scalar_type() == region.gradient_type &&
                        tag_of(sum) == nullptr;
  if (!as_it_is) {
    make(region);
    if (!sum.defined())
      region.gradient.zero_();
    else
      at::mul_out(region.gradient, sum, at::scalar_tensor(scale));
    return;
  }
  if (scale != 1.0) at::Tensor(sum).mul_(scale);
  region.gradient_tag = mark(sum, TagKind::gradient, &region);
  region.gradient = watched(sum);
  cut(region);
}

void GradientShards::let_go(const std::vector<std::shared_ptr<Unit>>& units) const {
  if (device_.is_cpu()) return;
  for (const auto& unit : units) {
    // Norms of reproducible mode read the shards between backward and optimizer.
    if (reproduction_ != nullptr && std::any_of(unit->regions.begin(), unit->regions.end(),
                                                [](const auto& region) { return has_gradient(*region); }))
      continue;
    for (const auto& region : unit->regions) region->gradient = at::Tensor();
    for (const auto& param : unit->params) param->gradient_slice = at::Tensor();
  }
}

bool GradientShards::has_gradient(const UnitRegion& region) {
  const auto& params = region.unit->params;
  return std::any_of(params.begin(), params.end(), [&](const auto& param) {
    return &param->region() == &region && param->slice.grad().defined();
  });
}

void GradientShards::reduce(const Unit& unit, const std::vector<bool>& used, int32_t boundary) {
  for (const auto& region : unit.regions)
    if (region->layout.trainable) reduce_region(*region, used, boundary);
}

void GradientShards::reduce_region(UnitRegion& region, const std::vector<bool>& used, int32_t boundary) {
  if (reproduction_ != nullptr) return reduce_in_order(region, used);
  finish_region(region);
  const Unit& unit = *region.unit;
  const ReduceOp op = unit.average ? ReduceOp::average : ReduceOp::sum;
  const bool adds = has_gradient(region);
  make(region);
  Pending pending{.region = &region,
                  .buffer = std::exchange(region.buffer, at::Tensor()),
                  .result = {},
                  .work = {},
                  .used = used,
                  .adds = adds,
                  .across = unit.layout.ranks > 1 && mesh_.column,
                  .issued = boundary};
  if (unit.layout.ranks == 1) {
    if (!pending.buffer.is_same(region.gradient)) pending.result = pending.buffer;
    if (pending.buffer.numel() > 0)
      pending.work = mesh_.all.all_reduce(as_reals(pending.buffer), op, unit.name);
  } else {
    if (adds || region.reduce != region.gradient_type)
      pending.result = at::empty_like(region.gradient, region.gradient.options().dtype(region.reduce));
    if (pending.buffer.numel() > 0 && codec_)
      reduce_coded(pending, unit);
    else if (pending.buffer.numel() > 0)
      pending.work =
          mesh_.row.reduce_scatter(as_reals(pending.result.defined() ? pending.result : region.gradient),
                                   as_reals(pending.buffer), op, 1.0, unit.name);
  }
  pending_.push_back(std::move(pending));
}

// Done at once: decoding needs the parts of all ranks.
void GradientShards::reduce_coded(const Pending& pending, const Unit& unit) {
  const at::Tensor& sum = pending.result.defined() ? pending.result : pending.region->gradient;
  reduce_along_tree(mesh_.row, sum, pending.buffer, unit.name, codec_.get());
  if (unit.average) at::Tensor(sum).div_(mesh_.row.size());
}

// See Note [Reproducible]: what is left for the rounds of a step to add up.
void GradientShards::reduce_in_order(UnitRegion& region, const std::vector<bool>& used) {
  const Unit& unit = *region.unit;
  const at::Tensor buffer = std::exchange(region.buffer, at::Tensor());
  if (buffer.numel() > 0) {
    at::Tensor sum = buffer;  // alone, it is the sum
    if (mesh_.all.size() > 1) {
      sum = at::empty({region.layout.shard_numel}, buffer.options());
      reduce_along_tree(unit.layout.ranks > 1 ? mesh_.row : mesh_.all, as_reals(sum), as_reals(buffer),
                        unit.name);
    }
    if (unit.layout.ranks > 1 && mesh_.column)
      reduce_along_tree(*mesh_.column, as_reals(sum), as_reals(sum.clone()), unit.name);
    Reproduction::add(region, sum);
  }
  if (device_.is_cpu()) return;  // there ranks tell each other at the end what they used
  for (size_t i = 0; i < unit.params.size(); ++i)
    if (&unit.params[i]->region() == &region) unit.params[i]->touched = unit.params[i]->touched || used[i];
}

void GradientShards::finish_region(const UnitRegion& region) {
  const bool waiting = std::any_of(pending_.begin(), pending_.end(),
                                   [&](const Pending& pending) { return pending.region == &region; });
  if (waiting) finish_all();
}

// The sum over the rows runs beside the work of another unit, as the one over the row did.
void GradientShards::reduce_across(Pending& pending) {
  pending.work.wait();
  pending.across = false;
  const at::Tensor& sum = pending.result.defined() ? pending.result : pending.region->gradient;
  if (sum.numel() > 0)
    pending.work = mesh_.column->all_reduce(as_reals(sum),
                                            pending.region->unit->average ? ReduceOp::average : ReduceOp::sum,
                                            pending.region->unit->name);
}

void GradientShards::finish_before(int32_t boundary) {
  for (Pending& pending : pending_) {
    if (!pending.across || pending.issued >= boundary) continue;
    reduce_across(pending);
    pending.issued = boundary;
  }
  while (!pending_.empty() && pending_.front().issued < boundary) {
    finish(pending_.front());
    pending_.pop_front();
  }
}

void GradientShards::finish_all() {
  for (Pending& pending : pending_)
    if (pending.across) reduce_across(pending);
  while (!pending_.empty()) {
    finish(pending_.front());
    pending_.pop_front();
  }
}

void GradientShards::finish(Pending& pending) {
  pending.work.wait();
  UnitRegion& region = *pending.region;
  const auto& params = region.unit->params;
  if (pending.adds) prepare_to_add(region);
  if (pending.result.defined()) {
    if (pending.adds)
      region.gradient.add_(pending.result);
    else
      region.gradient.copy_(pending.result);
  }
  for (size_t i = 0; i < params.size(); ++i) {
    UnitParam& param = *params[i];
    if (&param.region() != &region || (!pending.used[i] && !param.slice.grad().defined())) continue;
    param.assigned = param.assigned || !param.slice.grad().defined();
    param.slice.mutable_grad() = param.gradient_slice;
  }
}

// The gradient shard holds what the slices' gradients say: zero where there is none.
void GradientShards::prepare_to_add(UnitRegion& region) {
  for (const auto& param : region.unit->params) {
    if (&param->region() != &region) continue;
    const at::Tensor& current = param->slice.grad();
    if (!current.defined())
      param->gradient_slice.zero_();
    else if (current.data_ptr() != param->gradient_slice.data_ptr())
      param->gradient_slice.copy_(current);
  }
}

void GradientShards::drop_pending() {
  for (Pending& one : std::exchange(pending_, {})) one.work.wait();
}

}  // namespace fsdp::detail
