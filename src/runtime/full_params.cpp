// full_params(): the scope in which a module's parameters are whole.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/host_pool.h"
#include "launch/in_call.h"
#include "layout/near_names.h"
#include "runtime/engine.h"
#include "watch/quiet.h"

namespace fsdp::detail {

namespace {

// `recurse`: also in modules inside the one at `path`.
bool lies_under(const std::string& name, const std::string& path, bool recurse) {
  if (name == path) return true;
  if (!path.empty() && !name.starts_with(path + ".")) return false;
  return recurse || name.find('.', path.empty() ? 0 : path.size() + 1) == std::string::npos;
}

bool has_param_under(const Unit& unit, const std::string& path, bool recurse) {
  return std::any_of(unit.params.begin(), unit.params.end(), [&](const auto& param) {
    return std::any_of(param->names.begin(), param->names.end(),
                       [&](const std::string& name) { return lies_under(name, path, recurse); });
  });
}

// "; near names: block1", of modules that hold parameters; empty if `path` is one of them.
std::string near_modules(const std::vector<UnitParam*>& params, const std::string& path) {
  std::vector<std::string> paths;
  for (const UnitParam* param : params)
    for (std::string name : param->names)
      while (name.rfind('.') != std::string::npos) paths.push_back(name = name.substr(0, name.rfind('.')));
  if (std::find(paths.begin(), paths.end(), path) != paths.end()) return "";
  std::string near;
  for (const std::string& one : near_names(path, paths))
    near += (near.empty() ? "; near names: " : ", ") + one;
  return near;
}

}  // namespace

std::vector<Unit*> Engine::units_under(const std::string& path, const char* doing, bool recurse) const {
  std::vector<Unit*> found;
  for (const auto& unit : units)
    if (has_param_under(*unit, path, recurse)) found.push_back(unit.get());
  TORCH_CHECK(!found.empty(), "fsdp: ", doing, ": no parameter lies ", recurse ? "" : "directly ", "under '",
              path, "'", recurse ? "" : "; set recurse, or give the path of a module that has some",
              near_modules(params, path));
  return found;
}

bool Engine::is_whole(const Unit& unit) const {
  return std::any_of(full_scopes_.begin(), full_scopes_.end(), [&](const auto& scope) {
    const std::vector<Unit*>& its = scope.second.units;
    return std::find(its.begin(), its.end(), &unit) != its.end();
  });
}

int Engine::open_full_params(const FullParamsOptions& options_) {
  TORCH_CHECK(!options_.write_back || !options_.rank0_only,
              "fsdp: full_params() with rank0_only and write_back: other ranks would keep their old values");
  end_failed_call();
  drop_failed_task();
  TORCH_CHECK(depth_ == 0 && task_ == -1, "fsdp: full_params() inside a call of the model or a backward");
  const InCall call(world, "full_params()");
  end_cycle();
  const Quiet quiet;
  executor_.release_all();
  FullScope scope{.options = options_, .units = {}, .whole = {}, .gradients = {}};
  const std::vector<Unit*> wanted = units_under(options_.module, "full_params()", options_.recurse);
  try {
    for (Unit* unit : wanted) {
      if (is_whole(*unit)) continue;  // an outer scope has it
      scope.units.push_back(unit);
      make_whole(*unit, scope);
    }
    if (options_.gradients) {
      wait_for_host();
      scope.gradients = std::make_unique<FullGradients>(*this, scope.units, options_);
    }
  } catch (...) {
    give_up(scope);
    throw;
  }
  state_ = TrainingState::summon_full_params;
  phases_.summon(scope.units);
  full_scopes_.emplace(next_scope_, std::move(scope));
  return next_scope_++;
}

at::Tensor gather_master(Model& model, UnitRegion& region, bool rank0_only) {
  Unit& unit = *region.unit;
  const bool here = !rank0_only || model.world.rank() == 0;
  const at::Tensor whole =
      at::empty({here ? region.spec.total() : 0}, region.home.options().dtype(region.master()));
  unit.peers_may_read = unit.peers_may_read || region.gather_path->peers_read_shard();
  if (!rank0_only)
    region.gather_path->gather_master(whole, std::nullopt, unit.name());
  else if (model.mesh.in_world(0) == 0)  // the row of rank 0
    region.gather_path->gather_master(whole, 0, unit.name());
  return whole;
}

void Engine::make_whole(Unit& unit, FullScope& scope) {
  const bool here = !scope.options.rank0_only || world.rank() == 0;
  for (const auto& region : unit.regions) {
    at::Tensor whole = gather_master(*this, *region, scope.options.rank0_only);
    if (scope.options.offload) whole = whole.cpu();
    scope.whole.push_back(whole);
    if (!here) continue;
    for (const auto& param : unit.params) {
      if (&param->region() != region.get()) continue;
      param->attach(whole.storage(), region->master());
      if (whole.device() != region->home.device()) param->move_to(whole);
    }
  }
  unit.claim_shards();
}

// Not all units could be made whole, so none stays whole. The last one does not have all its regions.
void Engine::give_up(FullScope& scope) {
  for (Unit* unit : scope.units) {
    for (const auto& param : unit->params) param->move_to(param->region().home);
    unit->unbind();
  }
}

namespace {

// torch::load and set_data() give a parameter other memory: its values count, its memory does not.
void take_back(const UnitParam& param, const at::Tensor& whole, bool write_back) {
  const at::Tensor& tensor = param.tensor;
  const bool same = tensor.has_storage() && tensor.storage().is_alias_of(whole.storage()) &&
                    tensor.storage_offset() == param.placement.offset;
  if (same) return;
  if (tensor.sizes() != at::IntArrayRef(param.placement.param.shape)) {
    TORCH_WARN("fsdp: parameter '", param.names.front(),
               "' was given another shape in full_params(); its values stay as they were");
  } else if (write_back) {
    param.view_of(whole).copy_(tensor.detach());
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(param.placement.param.shape, param.strides,
                                                      param.placement.offset);
}

}  // namespace

void Engine::close_full_params(int scope_) {
  const auto found = full_scopes_.find(scope_);
  if (found == full_scopes_.end()) return;
  FullScope scope = std::move(found->second);
  full_scopes_.erase(found);
  if (scope.options.write_back) {
    announce_change();
    wait_for_host();
  }
  const Quiet quiet;
  if (scope.gradients) scope.gradients->close(scope.options.write_back);
  std::span<const at::Tensor> rest = scope.whole;
  for (Unit* unit : scope.units) {
    take_apart(*unit, rest.first(unit->regions.size()), scope.options);
    rest = rest.subspan(unit->regions.size());
  }
  for (UnitParam* param : params) watch(*param);
  phases_.dismiss(scope.units);
  if (full_scopes_.empty()) state_ = TrainingState::idle;
  scope.whole.clear();
  trim_host_pool();
}

void Engine::take_apart(Unit& unit, std::span<const at::Tensor> whole, const FullParamsOptions& how) {
  const bool here = !how.rank0_only || world.rank() == 0;
  for (size_t i = 0; i < unit.regions.size() && here; ++i) {
    UnitRegion& region = *unit.regions[i];
    for (const auto& param : unit.params) {
      if (&param->region() != &region) continue;
      take_back(*param, whole[i], how.write_back);
      param->move_to(region.home);  // set_data() has changed device, type and keys
    }
    const int64_t n = region.shard.numel();
    if (how.write_back) region.shard.copy_(whole[i].narrow(0, mesh.shard_index(unit.ranks()) * n, n));
  }
  unit.unbind();
}

}  // namespace fsdp::detail
