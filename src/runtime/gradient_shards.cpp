#include "runtime/gradient_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/memory_report.h"
#include "watch/observer.h"

namespace fsdp::detail {

// Note [Gradient shards]
// A gradient shard belongs to the slices' .grad() and goes away with them, at zero_grad(): a gradient that
// the program keeps is never written again. The runtime holds the shard from the first reduce of a backward
// to its end. Sums arrive in memory that no slice shows. Until the end of the backward a slice's .grad() is
// autograd's alone, which may write to it at any time (a penalty over slices). Only if all slices of a region
// show one shard, as in gradient accumulation, and autograd adds in place, sums are added to it as they
// arrive. Padding is cleared on the CPU.
void GradientShards::make(UnitRegion& region) {
  if (region.gradient.shard.defined()) return;
  if (auto storage = region.gradient.last.lock();
      storage && !graph_stays && region.gradient_type() == region.master() && all_show(region, *storage)) {
    const at::Tensor like = at::empty({0}, region.shard.options().device(storage->device()));
    like.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
    region.gradient.shard = watched(raw_view(like, 0, region.shard.sizes(), {1}));
    region.gradient.shown = true;
  } else {
    const at::Tensor fresh = fresh_shard(region);
    region.gradient.tag = mark(fresh, TagKind::gradient, &region);
    region.gradient.shard = watched(fresh);
    region.gradient.last = c10::weak_intrusive_ptr(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        region.gradient.shard.storage().unsafeGetStorageImpl()));
    region.gradient.shown = false;
    region.gradient.made_on = current_stream(fresh.device());
  }
  cut(region);
}

std::optional<c10::Stream> GradientShards::current_stream(c10::Device device) const {
  if (!policy_.has_streams || device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Parts of a model may run on streams of their own, and so may their backwards. Optimizers run on the stream
// that called backward(), and memory that they still read must not go back to another stream.
void GradientShards::hand_over(std::optional<c10::Stream>& made_on, const c10::DataPtr& memory) const {
  if (!made_on) return;
  const c10::Stream now = *current_stream(made_on->device());
  if (now == *made_on) return;
  c10::impl::VirtualGuardImpl(now.device_type()).recordDataPtrOnStream(memory, now);
  made_on.reset();
}

at::Tensor GradientShards::fresh_shard(const UnitRegion& region) const {
  const int64_t n = region.spec.layout.shard_numel;
  if (region.spec.gradient_on_host) return host_->memory->take(n, region.gradient_type());
  const auto options = region.home.options().dtype(region.gradient_type());
  const bool reduced = !region.reduce_path->alone();  // so all of it is written, padding included
  return with_memory_report(*region.unit->engine, "a gradient shard", region.spec.gradient_bytes(), [&] {
    return policy_.clears_padding && !reduced ? at::zeros({n}, options) : at::empty({n}, options);
  });
}

bool GradientShards::all_show(const UnitRegion& region, const c10::StorageImpl& storage) {
  const auto& params = region.unit->params;
  return std::all_of(params.begin(), params.end(), [&](const auto& param) {
    const at::Tensor& grad = param->slice.grad();
    return &param->region() != &region || param->slice.numel() == 0 ||
           (grad.defined() && grad.has_storage() && grad.storage().unsafeGetStorageImpl() == &storage);
  });
}

void GradientShards::cut(UnitRegion& region) const {
  for (const auto& param : region.unit->params) {
    if (&param->region() != &region) continue;
    const ShardRange range =
        region.unit->spec.layout.range(param->placement, mesh_.shard_index(region.unit->ranks()));
    param->gradient.slice = raw_view(region.gradient.shard, range.in_shard, {range.size}, {1});
  }
}

// On a GPU the memory of the sum becomes the shard; see Note [Gradient shards].
void GradientShards::take(UnitRegion& region, const at::Tensor& sum, double scale) {
  if (region.spec.gradient_on_host && sum.defined()) {
    make(region);
    region.gradient.shown = true;  // once the last backward of the step ends
    if (scale != 1.0) at::Tensor(sum).mul_(scale);
    host_->downloads.start(region.gradient.shard, sum.to(region.gradient_type()), /*adds=*/false);
    return;
  }
  const bool as_it_is = policy_.adopts_sums && sum.defined() && sum.scalar_type() == region.gradient_type() &&
                        tag_of(sum) == nullptr;
  if (!as_it_is) {
    make(region);
    region.gradient.shown = true;  // once the last backward of the step ends
    if (!sum.defined())
      region.gradient.shard.zero_();
    else
      at::mul_out(region.gradient.shard, sum, at::scalar_tensor(scale));
    return;
  }
  if (scale != 1.0) at::Tensor(sum).mul_(scale);
  region.gradient.tag = mark(sum, TagKind::gradient, &region);
  region.gradient.shard = watched(sum);
  region.gradient.made_on = current_stream(sum.device());
  cut(region);
}

void GradientShards::let_go(const std::vector<std::shared_ptr<Unit>>& units) const {
  for (const auto& unit : units) {
    // Norms of reproducible mode read the shards between backward and optimizer step.
    if (mode_ != nullptr && std::any_of(unit->regions.begin(), unit->regions.end(),
                                        [](const auto& region) { return has_gradient(*region); }))
      continue;
    for (const auto& region : unit->regions) forget(*region);
  }
}

void GradientShards::forget(UnitRegion& region) {
  region.gradient.shard = at::Tensor();
  region.gradient.shown = region.gradient.summed = false;
  for (const auto& param : region.unit->params)
    if (&param->region() == &region) param->gradient.slice = at::Tensor();
}

bool GradientShards::has_gradient(const UnitRegion& region) {
  const auto& params = region.unit->params;
  return std::any_of(params.begin(), params.end(), [&](const auto& param) {
    return &param->region() == &region && param->slice.grad().defined();
  });
}

void GradientShards::reduce(const Unit& unit, const std::vector<bool>& used) {
  for (const auto& region : unit.regions)
    if (region->spec.layout.trainable) reduce_region(*region, used);
}

void GradientShards::reduce_region(UnitRegion& region, const std::vector<bool>& used) {
  if (mode_ != nullptr) return reduce_for_mode(region, used);
  if (stays_in_row(region)) return reduce_in_row(region, used);
  FSDP_ASSERT(!is_pending(region));
  const Unit& unit = *region.unit;
  ReducePath& path = *region.reduce_path;
  make(region);
  const bool adds = region.gradient.shown || region.gradient.summed;
  Pending pending{.region = &region,
                  .buffer = std::exchange(region.gradient.buffer, at::Tensor()),
                  .result = {},
                  .work = {},
                  .across = path.crosses()};
  for (size_t i = 0; i < unit.params.size(); ++i)
    if (&unit.params[i]->region() == &region) unit.params[i]->gradient.used_by_any_rank |= used[i];
  if (path.in_buffer()) {
    if (!pending.buffer.is_same(region.gradient.shard)) pending.result = pending.buffer;
  } else if (adds || region.reduce() != region.gradient_type() || region.spec.gradient_on_host) {
    pending.result =
        at::empty({region.spec.layout.shard_numel}, region.home.options().dtype(region.reduce()));
    pending.made_on = current_stream(pending.result.device());
  }
  if (pending.buffer.numel() > 0)
    pending.work = path.start(pending.result.defined() ? pending.result : region.gradient.shard,
                              pending.buffer, unit.name());
  pending_.push_back(std::move(pending));
}

// Reduces into a sum that the mode adds up.
void GradientShards::reduce_for_mode(UnitRegion& region, const std::vector<bool>& used) {
  const Unit& unit = *region.unit;
  const at::Tensor buffer = std::exchange(region.gradient.buffer, at::Tensor());
  if (buffer.numel() > 0) {
    ReducePath& path = *region.reduce_path;
    const at::Tensor sum =
        path.in_buffer() ? buffer : at::empty({region.spec.layout.shard_numel}, buffer.options());
    path.start(sum, buffer, unit.name()).wait();
    mode_->add(region, sum);
  }
  if (policy_.asks_ranks_every_step) return;  // they exchange at the end which parameters they used
  for (size_t i = 0; i < unit.params.size(); ++i)
    if (&unit.params[i]->region() == &region) unit.params[i]->gradient.used_by_any_rank |= used[i];
}

bool GradientShards::is_pending(const UnitRegion& region) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const Pending& pending) { return pending.region == &region; });
}

std::vector<InFlight> GradientShards::in_flight() const {
  std::vector<InFlight> units;
  for (const Pending& pending : pending_) {
    const UnitId unit = pending.region->unit->id;
    if (units.empty() || units.back().unit != unit) units.push_back({.unit = unit, .across = pending.across});
  }
  return units;
}

// The sum over the rows overlaps another unit's work, as the one over the row did.
void GradientShards::reduce_across(const Unit& unit) {
  for (Pending& pending : pending_) {
    UnitRegion& region = *pending.region;
    if (region.unit != &unit || !std::exchange(pending.across, false)) continue;
    pending.work.wait();
    pending.buffer = at::Tensor();
    const at::Tensor& sum = pending.result.defined() ? pending.result : region.gradient.shard;
    if (const at::Tensor kept = take_from_row(region); kept.defined()) at::Tensor(sum).add_(kept);
    if (sum.numel() > 0) pending.work = region.reduce_path->cross(sum, unit.name());
  }
}

void GradientShards::settle(const Unit& unit, const Schedule* schedule) {
  for (Pending& pending : pending_)
    if (pending.region->unit == &unit) finish(pending, schedule);
  std::erase_if(pending_, [&](const Pending& pending) { return pending.region->unit == &unit; });
}

void GradientShards::finish(Pending& pending, const Schedule* schedule) {
  pending.work.wait();
  if (pending.result.defined()) hand_over(pending.made_on, pending.result.storage().data_ptr());
  if (pending.stays_in_row)
    keep_in_row(*pending.region, pending.result);
  else
    arrive(*pending.region, pending.result, schedule);
}

// `sum`: the sum over all ranks; undefined: it is in the gradient shard.
void GradientShards::arrive(UnitRegion& region, const at::Tensor& sum, const Schedule* schedule) {
  const double divide_by = region.unit->spec.divide_by;
  if (divide_by != 0) at::Tensor(sum.defined() ? sum : region.gradient.shard).div_(divide_by);
  const bool adds = region.gradient.shown || region.gradient.summed;
  if (region.spec.gradient_on_host) {
    bring_to_host(region, sum, adds, schedule);
  } else if (sum.defined()) {
    if (adds)
      region.gradient.shard.add_(sum);
    else
      region.gradient.shard.copy_(sum);
  }
  region.gradient.summed = true;
}

// Adds the gradients that autograd wrote to a slice's .grad() meanwhile.
void GradientShards::show(UnitParam& param) const {
  at::Tensor& grad = param.slice.mutable_grad();
  RegionGradient& region = param.region().gradient;
  if (region.made_on) hand_over(region.made_on, (*region.tag).memory);
  if (param.region().gradient.shown && grad.defined()) return;
  if (grad.defined()) param.gradient.slice.add_(grad);
  grad = param.gradient.slice;
}

bool GradientShards::busy(const UnitRegion& region) const {
  return region.gradient.summed || is_pending(region);
}

void GradientShards::drop_pending() {
  for (Pending& one : std::exchange(pending_, {})) one.work.wait();
  if (host_ == nullptr) return;
  host_->downloads.wait();
  postponed_.clear();
  if (!stepped_.empty())
    log_warn(
        "a backward failed after AdamW::step_in_backward() had updated some units: parameters are of two "
        "steps now. To go on exactly, load a checkpoint.");
  for (UnitRegion* region : std::exchange(stepped_, {})) region->host->updated_in_cycle(false);
}

}  // namespace fsdp::detail
