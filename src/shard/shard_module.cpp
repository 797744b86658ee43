// fully_shard(): from a module to an engine with shards.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/host_pool.h"
#include "layout/units.h"
#include "modes/replica_check.h"
#include "modes/reproducible.h"
#include "runtime/buffers.h"
#include "runtime/checks.h"
#include "runtime/engine.h"
#include "shard/agreement.h"
#include "shard/choose_paths.h"
#include "shard/module_walk.h"
#include "shard/tape.h"
#include "shard/wrap.h"
#include "watch/messages.h"
#include "watch/quiet.h"

namespace fsdp::detail {

namespace {

// `tensor` becomes `other`. A tensor without memory cannot do so by set_data().
void take_place(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.is_meta())
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  else
    tensor.set_data(other);
}

class Sharding {
 public:
  Sharding(const World& world, torch::nn::Module& module, const ShardOptions& options)
      : world_(world), module_(module), options_(options), quiet_() {}

  std::shared_ptr<Engine> run();

 private:
  void make_engine(const Comm& all);
  void find_inner();
  void check_inner() const;
  void agree_on_tapes(Comm& all);
  std::shared_ptr<Tape> tape_of(const at::Tensor& tensor) const {
    return by_tape_ ? Tape::of(tensor) : nullptr;
  }
  void absorb_inner();
  std::vector<UnitDecl> units();
  std::vector<PlannedUnit> plan_units();
  void check_params(const std::vector<UnitDecl>& decls) const;
  void check_memory(const FoundParam& found) const;
  void bring_rest();
  std::shared_ptr<Unit> make_unit(const PlannedUnit& planned);
  void choose_part(Unit& unit, const UnitOptions& own, bool whole);
  void make_regions(Unit& unit, const Precision& precision);
  void first_values(const UnitParam& param, const at::Tensor& whole) const;
  at::Tensor new_shard(const UnitRegion& region, at::Tensor& shared);
  void make_shard(UnitRegion& region);
  std::unique_ptr<UnitParam> make_param(Unit& unit, const Placement& place);
  void move_into(UnitParam& param);
  void defer(const at::Tensor& tensor, std::function<void(const at::Tensor&)> takes);
  void replay();
  void keep_slice(UnitParam& param, const at::Tensor& value);
  void order_params();

  const World& world_;
  torch::nn::Module& module_;
  const ShardOptions& options_;
  const Quiet quiet_;
  const Policy policy_ = policy_of(world_.device());
  WalkedModule walked_;
  std::shared_ptr<Engine> engine_;
  const Reproduction* reproduction_ = nullptr;  // the engine's mode
  std::optional<PathChoice> paths_;
  std::vector<ParamId> taken_;  // ignored, or in a unit already
  std::vector<std::shared_ptr<Engine>> inner_;
  // What on_meta() made, by tape, and who takes the values. See Note [Deferred initialisation].
  struct Deferred {
    std::vector<TapedTensor> wanted;
    std::vector<std::function<void(const at::Tensor&)>> takers;
  };
  std::map<std::shared_ptr<Tape>, Deferred> deferred_;
  bool by_tape_ = true;
};

std::shared_ptr<Engine> Sharding::run() {
  TORCH_CHECK(options_.check_copies_every >= 0, "fsdp: check_copies_every ", options_.check_copies_every,
              "; it is a number of backwards, or 0 for never");
  walked_ = walk_module(module_);
  check_rows(world_, options_);
  Comm all = Comm::create(world_, options_.comm);
  require_agreement(all, world_.device(), model_facts(module_, walked_, options_),
                    "Build the same module on every rank, with its layers in the same order, and give "
                    "fully_shard() the same options.");
  find_inner();
  agree_on_tapes(all);
  const std::vector<PlannedUnit> planned = plan_units();
  require_agreement(all, world_.device(), unit_facts(planned),
                    "The wrap policy and ShardOptions::unit must answer the same on every rank.");
  make_engine(all);
  check_inner();
  absorb_inner();
  bring_rest();
  for (const PlannedUnit& unit : planned) engine_->units.push_back(make_unit(unit));
  replay();
  order_params();
  engine_->start();
  trim_host_pool();
  return engine_;
}

void Sharding::make_engine(const Comm& all) {
  std::unique_ptr<Reproduction> mode;
  if (options_.reproducible)
    mode = std::make_unique<Reproduction>(*options_.reproducible, world_, options_, module_);
  reproduction_ = mode.get();
  engine_ =
      std::make_shared<Engine>(world_, module_, options_, make_mesh(world_, options_, all), std::move(mode));
  if (options_.check_copies_every > 0)
    engine_->after_backward.push_back(check_replicas_every(options_.check_copies_every));
  paths_.emplace(engine_->mesh, options_, world_.device(), reproduction_ != nullptr);
}

// Parameters that an earlier fully_shard() took keep their units.
void Sharding::find_inner() {
  std::set<const c10::TensorImpl*> ours;
  for (const FoundParam& found : walked_.params) ours.insert(found.tensor.unsafeGetTensorImpl());
  for (size_t id = 0; id < walked_.params.size(); ++id) {
    const FoundParam& found = walked_.params[id];
    const Tag* tag = tag_of(found.tensor);
    if (tag == nullptr) continue;
    TORCH_CHECK(
        tag->region != nullptr, "fsdp: parameter '", found.names.front(),
        "' belongs to a sharded model that is gone; keep the handle of an inner module until the outer one "
        "is sharded");
    Engine* inner = region_of(*tag)->unit->engine;
    for (const auto& unit : inner->units)
      for (const auto& param : unit->params)
        TORCH_CHECK(ours.contains(param->tensor.unsafeGetTensorImpl()), "fsdp: parameter '",
                    found.names.front(), "' was sharded together with '", param->names.front(),
                    "', which is not part of this module");
    taken_.push_back(static_cast<ParamId>(id));
    if (inner_.empty() || inner_.back().get() != inner) inner_.push_back(inner->shared_from_this());
  }
}

void Sharding::check_inner() const {
  for (const FoundParam& found : walked_.params) {
    const Tag* tag = tag_of(found.tensor);
    if (tag == nullptr) continue;
    const Engine* inner = region_of(*tag)->unit->engine;
    TORCH_CHECK(
        inner->mesh.row.size() == engine_->mesh.row.size() &&
            (inner->mode != nullptr) == (engine_->mode != nullptr),
        "fsdp: parameter '", found.names.front(),
        "' was sharded before, over another number of ranks or in another mode than the module around it");
  }
}

// Where rank 0 has values they are what counts: other ranks need not compute their own.
void Sharding::agree_on_tapes(Comm& all) {
  if (!options_.sync_module_states || world_.size() == 1) return;
  const bool mine = std::any_of(walked_.params.begin(), walked_.params.end(),
                                [](const FoundParam& found) { return Tape::of(found.tensor) != nullptr; });
  const at::Tensor first =
      at::full({1}, mine ? 1 : 0, at::TensorOptions().dtype(at::kLong).device(world_.device()));
  all.broadcast(first, 0, "on_meta").wait();
  by_tape_ = first.item<int64_t>() == 1;
  TORCH_CHECK(mine || !by_tape_, "fsdp: rank 0 made the model inside on_meta() and rank ", world_.rank(),
              " did not; do so on every rank, or on every rank but 0");
}

void Sharding::absorb_inner() {
  for (const auto& inner : inner_) {
    if (inner->merged_into) continue;
    engine_->absorb(*inner);
    inner->merged_into = engine_;
  }
  for (const auto& unit : engine_->units) {
    unit->engine = engine_.get();
    paths_->choose_again(*unit);
  }
}

std::vector<UnitDecl> Sharding::units() {
  try {
    const auto ignored = params_under(walked_.root, options_.ignored);
    taken_.insert(taken_.end(), ignored.begin(), ignored.end());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, "fsdp: ignored: ", error.what());
  }
  auto units = make_units(walked_.root, layout_policy(options_.wrap, walked_.root), taken_);
  if (options_.wrap && options_.wrap.target<decltype(&never)>() == nullptr && units.size() == 1 &&
      world_.rank() == 0)
    TORCH_WARN(
        "fsdp: the wrap policy chose no module, so the whole model is one unit and is gathered at once. "
        "Choose "
        "its blocks, leave `wrap` empty to have them found, or say whole_model() if this is meant.");
  return resize_units(std::move(units),
                      {.min_bytes = options_.min_unit_bytes, .max_bytes = options_.max_unit_bytes});
}

// Parameters that are checked, and what ShardOptions::unit says of each unit.
std::vector<PlannedUnit> Sharding::plan_units() {
  std::vector<UnitDecl> decls = units();
  check_params(decls);
  // Without shards nothing is gained by taking small parameters out of their units.
  const bool whole = options_.strategy == Strategy::no_shard;
  std::vector<ParamDecl> small = take_small(decls, whole ? 0 : options_.replicate_below);
  std::vector<PlannedUnit> planned;
  for (UnitDecl& decl : decls) planned.push_back({.decl = std::move(decl)});
  if (!small.empty())
    planned.push_back({.decl = {.name = "replicated", .params = std::move(small)}, .replicated = true});
  if (options_.unit)
    for (PlannedUnit& unit : planned) unit.options = options_.unit(unit.decl.name);
  return planned;
}

// Before anything is changed: a module that is refused stays as it was.
void Sharding::check_params(const std::vector<UnitDecl>& decls) const {
  WalkedModule ours;
  for (const UnitDecl& decl : decls)
    for (const ParamDecl& param : decl.params) {
      ours.params.push_back(walked_.params[static_cast<size_t>(param.id)]);
      check_type(ours.params.back().tensor, ours.params.back().names.front());
      check_memory(ours.params.back());
    }
  check_unshared(ours);
}

// Without memory there must be a way to values: a tape, a function, or rank 0.
void Sharding::check_memory(const FoundParam& found) const {
  if (!found.tensor.is_meta() || tape_of(found.tensor) || options_.init) return;
  TORCH_CHECK(options_.sync_module_states && world_.rank() > 0, "fsdp: parameter '", found.names.front(),
              "' is on the meta device and has no values; make the module inside fsdp::on_meta(), set "
              "ShardOptions::init, or have rank 0 load it while other ranks leave it on meta");
}

// Buffers and ignored parameters are whole on every rank, on its device, and start as rank 0's.
void Sharding::bring_rest() {
  std::vector<at::Tensor> rest = module_.buffers();
  for (const ParamId id : taken_) {
    const at::Tensor& tensor = walked_.params[static_cast<size_t>(id)].tensor;
    if (tag_of(tensor) == nullptr) rest.push_back(tensor);
  }
  for (at::Tensor& tensor : rest) {
    if (tape_of(tensor)) {
      defer(tensor, [tensor](const at::Tensor& value) { at::Tensor(tensor).detach().copy_(value); });
      take_place(tensor, at::empty_like(tensor, tensor.options().device(world_.device())));
      continue;
    }
    if (tensor.is_meta())
      take_place(tensor, at::empty_like(tensor, tensor.options().device(world_.device())));
    else if (tensor.device() != world_.device())
      tensor.set_data(tensor.to(world_.device()));
    if (options_.precision.buffer && tensor.is_floating_point() && !tensor.requires_grad())
      tensor.set_data(tensor.to(*options_.precision.buffer));
    if (options_.sync_module_states) broadcast_from_0(tensor, engine_->mesh.all);
  }
}

std::shared_ptr<Unit> Sharding::make_unit(const PlannedUnit& planned) {
  const UnitDecl& decl = planned.decl;
  const UnitOptions& own = planned.options;
  const Precision precision = own.precision.value_or(options_.precision);
  const bool whole = planned.replicated || options_.strategy == Strategy::no_shard;
  auto unit = std::make_shared<Unit>(world_.device());
  unit->engine = engine_.get();
  unit->name = decl.name;
  const bool reshards =
      options_.strategy == Strategy::full_shard || options_.strategy == Strategy::hybrid_shard;
  unit->keep = !own.reshard_after_forward.value_or(reshards);
  choose_part(*unit, own, whole);
  unit->average = options_.gradients == ReduceOp::average;
  int64_t narrowest = 0;
  for (const auto type : {precision.param, precision.reduce, precision.master})
    if (type)
      narrowest = std::min(narrowest == 0 ? 8 : narrowest, static_cast<int64_t>(c10::elementSize(*type)));
  const int ranks = whole ? 1 : engine_->mesh.row.size();
  unit->layout = reproduction_ != nullptr ? reproduction_->make_layout(decl, ranks, narrowest)
                                          : make_layout(decl, ranks, narrowest);
  make_regions(*unit, precision);
  for (const Placement& place : unit->layout.params) unit->params.push_back(make_param(*unit, place));
  for (const auto& region : unit->regions) make_shard(*region);
  for (const auto& param : unit->params) move_into(*param);
  return unit;
}

// A reshard group says more than the strategy does; a group of one keeps the unit, one of all gives it up.
void Sharding::choose_part(Unit& unit, const UnitOptions& own, bool whole) {
  const bool asked = own.reshard_group && *own.reshard_group > 0;
  TORCH_CHECK(!asked || !own.reshard_after_forward, "fsdp: unit '", unit.name,
              "' has both reshard_after_forward and reshard_group; set one of them");
  const int ranks = own.reshard_group.value_or(own.reshard_after_forward ? 0 : options_.reshard_group);
  TORCH_CHECK(ranks == 0 || options_.strategy != Strategy::no_shard, "fsdp: reshard_group ", ranks,
              " with Strategy::no_shard, which keeps units whole; leave one of them out");
  if (ranks == 0 || whole || engine_->mesh.row.size() == 1) return;
  engine_->mesh.part(ranks);
  unit.keep = ranks == 1;
  if (ranks > 1 && ranks < engine_->mesh.row.size()) unit.part_ranks = ranks;
}

void Sharding::make_regions(Unit& unit, const Precision& precision) {
  for (const RegionLayout& layout : unit.layout.regions) {
    auto region = std::make_unique<UnitRegion>();
    region->unit = &unit;
    region->layout = layout;
    const auto own = static_cast<at::ScalarType>(layout.type.code);
    const bool floating = c10::isFloatingType(own);
    region->master = floating ? precision.master.value_or(own) : own;
    region->compute = floating ? precision.param.value_or(region->master) : region->master;
    region->reduce = floating ? precision.reduce.value_or(region->master) : region->master;
    TORCH_CHECK(reproduction_ == nullptr || !floating || c10::elementSize(region->reduce) >= 4,
                "fsdp: reproducible: gradients are summed in fp32 or wider, not in ", region->reduce,
                " (unit '", unit.name, "')");
    region->gradient_type = precision.keep_low_precision_grads ? region->reduce : region->master;
    const int64_t total = layout.total(unit.layout.ranks);
    region->in_place = total == 0 || (unit.layout.ranks == 1 && region->compute == region->master);
    region->parameter_tag = TagHandle(TagKind::parameter, region.get());
    const auto bytes = static_cast<size_t>(total) * c10::elementSize(region->compute);
    if (policy_.reserves_addresses && !region->in_place) region->nowhere = AddressRange(bytes);
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
  param->place = place;
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

// Zeros; a view of `shared` where the ranks' shards lie side by side.
at::Tensor Sharding::new_shard(const UnitRegion& region, at::Tensor& shared) {
  const auto options = at::TensorOptions().dtype(region.master).device(world_.device());
  const int64_t n = region.layout.shard_numel;
  if (!paths_->can_share(region)) return at::zeros({n}, options);
  Comm& row = engine_->mesh.row;
  const auto bytes = n * static_cast<int64_t>(c10::elementSize(region.master));
  shared = row.allocate(MemoryUse::gather, bytes * row.size(), at::kByte).view(region.master);
  char* own = static_cast<char*>(shared.mutable_data_ptr()) + bytes * row.rank();
  return at::from_blob(
      own, {n}, [owner = shared](void*) {}, options);
}

// The whole region exists for a moment only, as rank 0 has it.
void Sharding::make_shard(UnitRegion& region) {
  const Unit& unit = *region.unit;
  const auto options = at::TensorOptions().dtype(region.master).device(world_.device());
  const int64_t n = region.layout.shard_numel;
  at::Tensor shared;  // [total] the shards of all ranks, where they share memory
  std::vector<UnitParam*> params;
  for (const auto& param : unit.params)
    if (&param->region() == &region) params.push_back(param.get());
  if (std::any_of(params.begin(), params.end(),
                  [&](const auto* param) { return tape_of(param->tensor) != nullptr; })) {
    region.shard = new_shard(region, shared);
    for (UnitParam* param : params)
      defer(param->tensor, [this, param](const at::Tensor& value) { keep_slice(*param, value); });
  } else {
    at::Tensor whole = at::zeros({region.layout.total(unit.layout.ranks)}, options);
    for (const UnitParam* param : params) first_values(*param, whole);
    if (options_.sync_module_states && world_.size() > 1 && whole.numel() > 0)
      engine_->mesh.all.broadcast(as_reals(whole), 0, unit.name).wait();
    region.shard = whole;
    if (unit.layout.ranks > 1) {
      region.shard = new_shard(region, shared);
      region.shard.copy_(whole.narrow(0, engine_->mesh.row.rank() * n, n));
    }
  }
  region.shard_tag = mark(region.shard, TagKind::shard, &region);
  region.shard = watched(region.shard);
  region.version = region.shard._version();
  paths_->choose(region, shared);
  if (region.in_place)
    region.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        region.parameter_tag.point(region.shard.mutable_data_ptr(), world_.device()));
}

// From here on the module's tensor is a view of what is gathered, and has no memory of its own.
void Sharding::move_into(UnitParam& param) {
  UnitRegion& region = param.region();
  const auto options = at::TensorOptions().dtype(region.compute).device(world_.device());
  const auto over = [&](const c10::Storage& storage) {
    at::Tensor view = at::empty({0}, options);
    c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(storage);
    impl.set_sizes_and_strides(param.place.param.shape, param.strides, param.place.offset);
    return view;
  };
  refuse_old_graphs(param.tensor, param.names.front());
  take_place(param.tensor, watched(over(region.storage)));
  param.poison = make_poison(&region.parameter_tag, world_.device(), region.storage.nbytes(),
                             sharded_message(param.names.front()));
  param.trap =
      over(make_poison(nullptr, world_.device(), region.storage.nbytes(), trap_message(param.names.front())));
  if (!region.in_place) param.attach(param.poison, region.compute);
  const ShardRange range =
      param.unit->layout.range(param.place, param.unit->layout.ranks > 1 ? engine_->mesh.row.rank() : 0);
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

// This rank's part of a parameter whose whole value is there for a moment.
void Sharding::keep_slice(UnitParam& param, const at::Tensor& value) {
  const UnitRegion& region = param.region();
  const UnitLayout& layout = param.unit->layout;
  const ShardRange own = layout.range(param.place, layout.ranks > 1 ? engine_->mesh.row.rank() : 0);
  if (own.size == 0) return;
  const at::Tensor flat = at::empty({param.place.numel}, value.options());
  raw_view(flat, 0, param.place.param.shape, param.strides).copy_(value);
  region.shard.narrow(0, own.in_shard, own.size).copy_(flat.narrow(0, own.start, own.size));
}

void Sharding::order_params() {
  std::map<const c10::TensorImpl*, UnitParam*> by_tensor;
  for (const auto& unit : engine_->units)
    for (const auto& param : unit->params) by_tensor[param->tensor.unsafeGetTensorImpl()] = param.get();
  for (const FoundParam& found : walked_.params) {
    const auto place = by_tensor.find(found.tensor.unsafeGetTensorImpl());
    if (place == by_tensor.end()) continue;
    place->second->names = found.names;
    engine_->params.push_back(place->second);
  }
  TORCH_CHECK(engine_->params.size() == by_tensor.size(),
              "fsdp: a module inside was sharded together with parameters that are not part of this one");
  TORCH_CHECK(!engine_->params.empty(), "fsdp: the module has no parameters to shard");
}

}  // namespace

std::shared_ptr<Engine> shard_module(const World& world, torch::nn::Module& module,
                                     const ShardOptions& options) {
  return Sharding(world, module, options).run();
}

}  // namespace fsdp::detail
