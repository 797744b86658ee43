// fully_shard(): the steps of sharding a module, in order.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <set>

#include "base/host_pool.h"
#include "base/log.h"
#include "launch/in_call.h"
#include "layout/units.h"
#include "modes/replica_check.h"
#include "runtime/buffers.h"
#include "runtime/checks.h"
#include "shard/choose_unit.h"
#include "shard/sharding.h"
#include "shard/wrap.h"

namespace fsdp::detail {

// Makes `tensor` refer to `other`. A tensor without memory cannot do so by set_data().
void take_place(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.is_meta())
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  else
    tensor.set_data(other);
}

std::shared_ptr<Engine> Sharding::run() {
  TORCH_CHECK(options_.check_replicas_every >= 0, "fsdp: check_replicas_every ",
              options_.check_replicas_every, "; it is a number of backwards, or 0 for never");
  TORCH_CHECK(!options_.offload.params || !options_.gather_codec,
              "fsdp: offload.params with a gather_codec: shards in host memory are uploaded in the compute "
              "dtype, not through a codec; leave one of them out");
  TORCH_CHECK(!options_.gradient_divide_factor || *options_.gradient_divide_factor != 0,
              "fsdp: gradient_divide_factor 0; gradients cannot be divided by it");
  TORCH_CHECK(!options_.gradient_divide_factor || !options_.reproducible,
              "fsdp: gradient_divide_factor in reproducible mode, which divides by its microbatches; scale "
              "the loss instead");
  walked_ = walk_module(module_);
  row_ranks_ = row_size(world_, options_);
  Comm all = Comm::create(world_, options_.comm);
  require_agreement(all, world_.device(), model_facts(module_, walked_, options_),
                    "Build the same module on every rank, with its layers in the same order, and give "
                    "fully_shard() the same options.");
  find_inner();
  agree_on_tapes(all);
  const std::vector<PlannedUnit> planned = plan_units();
  require_agreement(all, world_.device(), unit_facts(planned),
                    "The wrap policy and ShardOptions::unit must answer the same on every rank.");
  check_prefetch_lists(planned);
  make_engine(all);
  check_inner();
  absorb_inner();
  bring_rest();
  for (const PlannedUnit& unit : planned) engine_->units.push_back(make_unit(unit));
  set_prefetch_lists(planned);
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
  if (options_.check_replicas_every > 0)
    engine_->after_backward.push_back(check_replicas_every(options_.check_replicas_every));
  paths_.emplace(engine_->mesh, options_, world_.device(), reproduction_ != nullptr);
}

// Parameters that an earlier fully_shard() sharded keep their units.
void Sharding::find_inner() {
  std::set<const c10::TensorImpl*> ours;
  for (const FoundParam& found : walked_.params) ours.insert(found.tensor.unsafeGetTensorImpl());
  for (size_t id = 0; id < walked_.params.size(); ++id) {
    const FoundParam& found = walked_.params[id];
    const Tag* tag = tag_of(found.tensor);
    if (tag == nullptr) continue;
    const UnitRegion* region = region_of(*tag);
    TORCH_CHECK(
        region != nullptr, "fsdp: parameter '", found.names.front(),
        "' belongs to a sharded model that is gone; keep the handle of an inner module until the outer one "
        "is sharded");
    Engine* inner = region->unit->engine;
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
    const auto on_host = [](const Engine& engine) {
      const Offload& offload = engine.options.offload;
      return engine.host ? std::pair(offload.params, offload.params || offload.gradients)
                         : std::pair(false, false);
    };
    TORCH_CHECK(on_host(*inner) == on_host(*engine_), "fsdp: parameter '", found.names.front(),
                "' was sharded before, with another Offload than the module around it; give both the same");
    TORCH_CHECK(
        !inner->host || !inner->host->stepper, "fsdp: parameter '", found.names.front(),
        "' is updated in backward by an optimizer of an inner model; call step_in_backward() when the "
        "module around it is sharded");
  }
}

// If rank 0 has values, they count: other ranks need not compute their own.
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

// Checks the parameters, and asks ShardOptions::unit for the options of each unit.
std::vector<PlannedUnit> Sharding::plan_units() {
  std::vector<UnitDecl> decls = units();
  check_params(decls);
  // Without shards there is no gain in replicating small parameters; and ranks may differ in whether they
  // read the unit of these only if other units are sharded.
  const bool whole = options_.strategy == Strategy::no_shard || row_ranks_ == 1;
  return with_options(std::move(decls), options_, whole);
}

// Runs before anything is changed: a module that is refused stays as it was.
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

// A parameter without memory needs a source of values: a tape, a function, or rank 0.
void Sharding::check_memory(const FoundParam& found) const {
  if (!found.tensor.is_meta() || tape_of(found.tensor) || options_.init) return;
  TORCH_CHECK(options_.sync_module_states && world_.rank() > 0, "fsdp: parameter '", found.names.front(),
              "' is on the meta device and has no values; make the module inside fsdp::on_meta(), set "
              "ShardOptions::init, or have rank 0 load it while other ranks leave it on meta");
}

// Buffers and ignored parameters are whole on every rank, on its device, and start with rank 0's values.
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

std::shared_ptr<Engine> shard_module(const World& world, torch::nn::Module& module,
                                     const ShardOptions& options) {
  const InCall call(world, "fully_shard()");
  auto engine = Sharding(world, module, options).run();
  if (world.rank() == 0) log_debug([&] { return "sharded " + ShardedModel(engine).describe(); });
  return engine;
}

}  // namespace fsdp::detail
