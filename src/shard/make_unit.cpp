// Units: their layout, shards and first values.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "runtime/checks.h"
#include "runtime/memory_report.h"
#include "shard/choose_unit.h"
#include "shard/sharding.h"
#include "watch/messages.h"
#include "watch/unit_casts.h"

namespace fsdp::detail {

std::shared_ptr<Unit> Sharding::make_unit(const PlannedUnit& planned) {
  auto unit = std::make_shared<Unit>(world_.device());
  unit->engine = engine_.get();
  unit->spec = make_unit_spec(planned.decl, choose(planned));
  unit->cast_inputs = planned.options.precision.value_or(options_.precision).cast_inputs;
  if (planned.options.precision) unit->output = planned.options.precision->output;
  make_regions(*unit);
  for (const Placement& place : unit->spec.layout.params) unit->params.push_back(make_param(*unit, place));
  for (const auto& region : unit->regions) make_shard(*region);
  for (const auto& param : unit->params) move_into(*param);
  return unit;
}

UnitChoice Sharding::choose(const PlannedUnit& planned) {
  const UnitOptions& own = planned.options;
  const bool whole = planned.replicated || options_.strategy == Strategy::no_shard;
  UnitChoice choice = choose_unit(planned, options_,
                                  {.row_ranks = engine_->mesh.row.size(),
                                   .pieces = reproduction_ != nullptr ? reproduction_->pieces() : 0,
                                   .may_share = paths_->may_share(),
                                   .host_side = engine_->host != nullptr});
  choose_part(choice, own, planned.decl.name, whole);
  return choice;
}

// A reshard group overrides the strategy. A group of one keeps the unit gathered; one of all ranks reshards.
void Sharding::choose_part(UnitChoice& choice, const UnitOptions& own, const std::string& name, bool whole) {
  const bool asked = own.reshard_group && *own.reshard_group > 0;
  TORCH_CHECK(!asked || !own.reshard_after_forward, "fsdp: unit '", name,
              "' has both reshard_after_forward and reshard_group; set one of them");
  const int ranks = own.reshard_group.value_or(own.reshard_after_forward ? 0 : options_.reshard_group);
  TORCH_CHECK(ranks == 0 || options_.strategy != Strategy::no_shard, "fsdp: reshard_group ", ranks,
              " with Strategy::no_shard, which keeps units whole; leave one of them out");
  if (ranks == 0 || whole || engine_->mesh.row.size() == 1) return;
  engine_->mesh.reshard_group(ranks);
  choice.stays_gathered = ranks == 1;
  if (ranks > 1 && ranks < engine_->mesh.row.size()) choice.reshard_group = ranks;
}

void Sharding::make_regions(Unit& unit) {
  for (RegionSpec& spec : unit.spec.regions) {
    auto region = std::make_unique<UnitRegion>(unit, spec);
    TORCH_CHECK(reproduction_ == nullptr || !spec.layout.type.floating || spec.reduce.bytes >= 4,
                "fsdp: reproducible: gradients are summed in fp32 or wider, not in ", region->reduce(),
                " (unit '", unit.name(), "')");
    region->parameter_tag = TagHandle(TagKind::parameter, region.get());
    const auto bytes = static_cast<size_t>(spec.total() * spec.compute.bytes);
    if (policy_.reserves_addresses && !spec.in_place()) region->nowhere = AddressRange(bytes);
    region->storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        region->parameter_tag.point(region->nowhere.data(), world_.device()), nullptr, /*resizable=*/false));
    unit.regions.push_back(std::move(region));
  }
}

std::unique_ptr<UnitParam> Sharding::make_param(Unit& unit, const Placement& place) {
  const FoundParam& found = walked_.params[static_cast<size_t>(place.param.id)];
  auto param = std::make_unique<UnitParam>();
  param->unit = &unit;
  param->placement = place;
  param->names = found.names;
  param->tensor = found.tensor;
  param->requires_grad = found.tensor.requires_grad();
  const bool dense = found.tensor.is_non_overlapping_and_dense();
  param->strides = dense ? found.tensor.strides().vec()
                         : at::empty_like(found.tensor, at::MemoryFormat::Contiguous).strides().vec();
  return param;
}

void Sharding::first_values(const UnitParam& param, const at::Tensor& whole) const {
  at::Tensor place = param.view_of(whole);
  if (!param.tensor.is_meta())
    place.copy_(param.tensor.detach());
  else if (options_.init)
    options_.init(param.names.front(), place);
}

// Zeros: a view of `shared` if the ranks' shards lie side by side, or host memory.
at::Tensor Sharding::new_shard(const UnitRegion& region, at::Tensor& shared) {
  const auto options = at::TensorOptions().dtype(region.master()).device(world_.device());
  const int64_t n = region.spec.layout.shard_numel;
  if (region.spec.on_host) return engine_->host->memory->take(n, region.master()).zero_();
  if (!region.spec.shared_shards)
    return with_memory_report(*engine_, "the shard of a unit", region.spec.shard_bytes(),
                              [&] { return at::zeros({n}, options); });
  Comm& row = engine_->mesh.row;
  const int64_t bytes = region.spec.shard_bytes();
  shared =
      with_memory_report(*engine_, "the shards of a unit, which the ranks share", bytes * row.size(), [&] {
        return row.allocate(MemoryUse::gather, bytes * row.size(), at::kByte);
      }).view(region.master());
  char* own = static_cast<char*>(shared.mutable_data_ptr()) + bytes * row.rank();
  return at::from_blob(
      own, {n}, [owner = shared](void*) {}, options);
}

// The copy of a shard in host memory that is uploaded; undefined: the shard itself is.
at::Tensor Sharding::host_copy(const UnitRegion& region) const {
  if (region.compute() == region.master()) return {};
  return engine_->host->memory->take(region.spec.layout.shard_numel, region.compute());
}

// The whole region, with rank 0's values, exists only while this runs.
void Sharding::make_shard(UnitRegion& region) {
  const Unit& unit = *region.unit;
  const auto options = at::TensorOptions().dtype(region.master()).device(world_.device());
  const int64_t n = region.spec.layout.shard_numel;
  at::Tensor shared;  // [total] the shards of all ranks, if they share memory
  std::vector<UnitParam*> params;
  for (const auto& param : unit.params)
    if (&param->region() == &region) params.push_back(param.get());
  if (std::any_of(params.begin(), params.end(),
                  [&](const auto* param) { return tape_of(param->tensor) != nullptr; })) {
    region.shard = new_shard(region, shared);
    for (UnitParam* param : params)
      defer(param->tensor, [this, param](const at::Tensor& value) { keep_slice(*param, value); });
  } else {
    at::Tensor whole = with_memory_report(*engine_, "a unit before it is sharded",
                                          region.spec.total() * region.spec.master.bytes,
                                          [&] { return at::zeros({region.spec.total()}, options); });
    for (const UnitParam* param : params) first_values(*param, whole);
    if (options_.sync_module_states && world_.size() > 1 && whole.numel() > 0)
      engine_->mesh.all.broadcast(as_reals(whole), 0, unit.name()).wait();
    region.shard = whole;
    if (unit.ranks() > 1 || region.spec.on_host) {
      region.shard = new_shard(region, shared);
      region.shard.copy_(whole.narrow(0, engine_->mesh.shard_index(unit.ranks()) * n, n));
    }
  }
  region.shard_tag = mark(region.shard, TagKind::shard, &region);
  region.shard = watched(region.shard);
  region.version = region.shard._version();
  region.home = as_parameter(at::empty({0}, options));
  if (engine_->host &&
      (region.spec.on_host ? engine_->host->memory->node().has_value() : options_.offload.optimizer))
    region.host_memory = engine_->host->memory;
  if (region.spec.on_host && n > 0)
    region.host = std::make_shared<HostShard>(region.shard, host_copy(region), world_.device(),
                                              engine_->host->promises);
  paths_->choose(region, shared);
  if (region.spec.in_place())
    region.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        region.parameter_tag.point(region.shard.mutable_data_ptr(), world_.device()));
}

// A tensor with the keys of a module's parameters.
at::Tensor Sharding::as_parameter(const at::Tensor& tensor) const {
  return options_.cast_unit_inputs ? with_casts(watched(tensor)) : watched(tensor);
}

// From here on the module's tensor is a view of the gathered values, and has no memory of its own.
void Sharding::move_into(UnitParam& param) {
  UnitRegion& region = param.region();
  const auto options = at::TensorOptions().dtype(region.compute()).device(world_.device());
  const auto over = [&](const c10::Storage& storage) {
    at::Tensor view = at::empty({0}, options);
    c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(storage);
    impl.set_sizes_and_strides(param.placement.param.shape, param.strides, param.placement.offset);
    return view;
  };
  refuse_old_graphs(param.tensor, param.names.front());
  take_place(param.tensor, as_parameter(over(region.storage)));
  param.poison = make_poison(&region.parameter_tag, world_.device(), region.storage.nbytes(),
                             sharded_message(param.names.front()));
  param.trap =
      over(make_poison(nullptr, world_.device(), region.storage.nbytes(), trap_message(param.names.front())));
  if (!region.spec.in_place()) param.attach(param.poison, region.compute());
  const ShardRange range =
      param.unit->spec.layout.range(param.placement, engine_->mesh.shard_index(param.unit->ranks()));
  param.slice = region.shard.narrow(0, range.in_shard, range.size).detach();
  param.slice.set_requires_grad(param.requires_grad);
}

void Sharding::defer(const at::Tensor& tensor, std::function<void(const at::Tensor&)> takes) {
  const auto tape = tape_of(tensor);
  if (!tape) {  // a parameter with values beside some without
    const at::Tensor value = tensor.detach().to(world_.device(), /*non_blocking=*/false, /*copy=*/true);
    if (options_.sync_module_states && world_.size() > 1 && value.numel() > 0)
      engine_->mesh.all.broadcast(as_reals(value.view({-1})), 0, "parameter").wait();
    return takes(value);
  }
  Deferred& deferred = deferred_[tape];
  deferred.wanted.push_back(Tape::place_of(tensor));
  deferred.takers.push_back(std::move(takes));
}

void Sharding::replay() {
  for (auto& [tape, deferred] : deferred_) {
    if (options_.sync_module_states && world_.size() > 1) {
      const at::Tensor state = tape->random_state.to(world_.device());
      engine_->mesh.all.broadcast(state, 0, "random state").wait();
      tape->random_state = state.cpu();
    }
    tape->replay(deferred.wanted, [&takers = deferred.takers](size_t i, const at::Tensor& value) {
      takers[i](value.detach());
    });
  }
  deferred_.clear();
  for (const auto& unit : engine_->units)
    for (const auto& region : unit->regions) region->version = region->shard._version();
}

// Keeps this rank's part of a parameter whose whole value exists only for a short time.
void Sharding::keep_slice(UnitParam& param, const at::Tensor& value) {
  const UnitRegion& region = param.region();
  const UnitLayout& layout = param.unit->spec.layout;
  const ShardRange own = layout.range(param.placement, engine_->mesh.shard_index(layout.ranks));
  if (own.size == 0) return;
  at::Tensor flat;
  if (value.strides() == at::IntArrayRef(param.strides)) {
    flat = value.as_strided({param.placement.numel}, {1});
  } else {
    flat = at::empty({param.placement.numel}, value.options());
    raw_view(flat, 0, param.placement.param.shape, param.strides).copy_(value);
  }
  region.shard.narrow(0, own.in_shard, own.size).copy_(flat.narrow(0, own.start, own.size));
}

}  // namespace fsdp::detail
