// Sums of gradients that no_sync() keeps in a row of the mesh.
#include <ATen/ops/empty.h>

#include <utility>

#include "runtime/gradient_shards.h"

namespace fsdp::detail {

// See Note [Sums in a row].
void GradientShards::reduce_in_row(UnitRegion& region, const std::vector<bool>& used) {
  const Unit& unit = *region.unit;
  Pending pending{
      .region = &region,
      .buffer = std::exchange(region.gradient.buffer, at::Tensor()),
      .result = at::empty({region.spec.layout.shard_numel}, region.home.options().dtype(region.reduce())),
      .work = {},
      .across = false,
      .stays_in_row = true};
  for (size_t i = 0; i < unit.params.size(); ++i)
    if (&unit.params[i]->region() == &region) unit.params[i]->gradient.in_row |= used[i];
  if (pending.buffer.numel() > 0)
    pending.work = region.reduce_path->start(pending.result, pending.buffer, unit.name());
  pending_.push_back(std::move(pending));
}

// Note [Sums in a row]
// Inside no_sync({.rows_only = true}) a backward reduces gradients in the row, and adds the sums up there.
// The first backward after it adds these to its own sum of the row before that is summed over the rows. Units
// that it does not reduce are summed over the rows at its end: all ranks have kept the same ones.
void GradientShards::keep_in_row(UnitRegion& region, const at::Tensor& sum) {
  at::Tensor& kept = region.gradient.row_sum;
  if (kept.defined())
    kept.add_(sum);
  else
    kept = sum;
}

at::Tensor GradientShards::take_from_row(UnitRegion& region) {
  for (const auto& param : region.unit->params)
    if (&param->region() == &region && std::exchange(param->gradient.in_row, false))
      param->gradient.used_by_any_rank = true;
  return std::exchange(region.gradient.row_sum, at::Tensor());
}

void GradientShards::reduce_left_in_rows(const std::vector<std::shared_ptr<Unit>>& units) {
  for (const auto& unit : units)
    for (const auto& region : unit->regions) {
      const at::Tensor sum = take_from_row(*region);
      if (!sum.defined()) continue;
      make(*region);
      if (sum.numel() > 0) region->reduce_path->cross(sum, unit->name()).wait();
      arrive(*region, sum, nullptr);
    }
}

}  // namespace fsdp::detail
