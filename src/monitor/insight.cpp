// Statistics and states of a sharded model: the functions behind <fsdp/insight.h>.
#include <fsdp/insight.h>
#include <fsdp/sharded_model.h>

#include <iomanip>
#include <sstream>

#include "base/bytes_text.h"
#include "layout/near_names.h"
#include "optim/state_format.h"
#include "runtime/model.h"

namespace fsdp {

using detail::bytes_text;
using detail::model_of;

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

const detail::UnitParam& find_param(const detail::Model& model, const std::string& name) {
  std::vector<std::string> known;
  for (const auto* param : model.params)
    for (const std::string& one : param->names) {
      if (one == name) return *param;
      known.push_back(one);
    }
  std::string near;
  for (const std::string& one : detail::near_names(name, known)) near += (near.empty() ? "" : ", ") + one;
  TORCH_CHECK(false, "fsdp: no parameter '", name, "'; near names: ", near);
}

int64_t elements(const detail::Unit& unit) {
  int64_t n = 0;
  for (const auto& param : unit.params) n += param->placement.numel;
  return n;
}

void describe_unit(std::ostream& out, const detail::Unit& unit, const detail::Mesh& mesh) {
  out << "  " << unit.name() << ": " << elements(unit) << " elements";
  for (const auto& region : unit.regions)
    out << ", " << (region->spec.layout.trainable ? "" : "frozen ") << region->master() << " shard of "
        << region->spec.layout.shard_numel
        << (region->compute() != region->master()
                ? std::string(" gathered as ") + c10::toString(region->compute())
                : "");
  out << (unit.ranks() == 1 ? ", whole on every rank" : "")
      << (unit.spec.stays_gathered && unit.ranks() > 1 ? ", kept from forward to backward" : "") << "\n";
  for (const auto& param : unit.params) {
    const detail::ShardRange own = unit.spec.layout.range(param->placement, mesh.shard_index(unit.ranks()));
    out << "    " << param->names.front() << " " << shape_text(param->placement.param.shape);
    for (size_t i = 1; i < param->names.size(); ++i) out << " = " << param->names[i];
    if (own.size == 0)
      out << " (none here)\n";
    else
      out << " [" << own.start << ", " << own.start + own.size << ")\n";
  }
}

}  // namespace

const char* to_string(TrainingState state) {
  switch (state) {
    case TrainingState::idle:
      return "idle";
    case TrainingState::forward_backward:
      return "forward_backward";
    case TrainingState::summon_full_params:
      return "summon_full_params";
  }
  return "";
}

const char* to_string(UnitState state) {
  switch (state) {
    case UnitState::sharded:
      return "sharded";
    case UnitState::gathering:
      return "gathering";
    case UnitState::gathered:
      return "gathered";
    case UnitState::reducing:
      return "reducing";
  }
  return "";
}

const char* to_string(UnitPhase phase) {
  switch (phase) {
    case UnitPhase::idle:
      return "idle";
    case UnitPhase::forward:
      return "forward";
    case UnitPhase::backward_pre:
      return "backward_pre";
    case UnitPhase::backward_post:
      return "backward_post";
    case UnitPhase::summon:
      return "summon";
  }
  return "";
}

MemoryStats ShardedModel::memory_stats() const { return model_of(engine_).memory_stats(0); }
MemoryStats ShardedModel::memory_stats(const torch::optim::Optimizer& optimizer,
                                       const OptimizerFormat* format) const {
  return model_of(engine_).memory_stats(detail::state_bytes(optimizer, format));
}

std::vector<UnitCounts> ShardedModel::unit_counts() const {
  std::vector<UnitCounts> counts;
  for (const auto& unit : model_of(engine_).units)
    counts.push_back({unit->name(), unit->slot.gathers, unit->gradient.reduces});
  return counts;
}

std::vector<UnitPhase> ShardedModel::unit_phases() const {
  std::vector<UnitPhase> phases;
  for (const auto& unit : model_of(engine_).units) phases.push_back(unit->phase);
  return phases;
}

int64_t ShardedModel::num_parameters() const {
  int64_t n = 0;
  for (const auto& unit : model_of(engine_).units) n += elements(*unit);
  return n;
}

double ShardedModel::local_sharding_ratio() const {
  int64_t local = 0;
  for (const auto* param : model_of(engine_).params) local += param->slice.numel();
  return static_cast<double>(local) / static_cast<double>(std::max<int64_t>(1, num_parameters()));
}

ParameterInfo ShardedModel::parameter_info(const std::string& name) const {
  const detail::Model& model = model_of(engine_);
  const detail::UnitParam& param = find_param(model, name);
  const detail::Unit& unit = *param.unit;
  ParameterInfo info{.name = param.names.front(),
                     .unit = unit.name(),
                     .shape = param.placement.param.shape,
                     .state = unit.gradient.open ? UnitState::reducing : unit.slot.state,
                     .phase = unit.phase,
                     .shards = {}};
  if (unit.ranks() == 1) {
    info.shards.push_back(
        {.rank = model.world.rank(), .start = 0, .size = param.placement.numel, .is_local = true});
    return info;
  }
  for (const detail::ShardRange& range : unit.spec.layout.ranges(param.placement))
    info.shards.push_back({.rank = model.mesh.in_world(range.rank),
                           .start = range.start,
                           .size = range.size,
                           .is_local = range.rank == model.mesh.row.rank()});
  return info;
}

std::string ShardedModel::describe() const {
  const detail::Model& model = model_of(engine_);
  std::ostringstream out;
  out << model.module.name() << ": " << num_parameters() << " parameters in " << model.units.size()
      << " units over " << model.world.size() << " ranks"
      << (model.mesh.column ? " in rows of " + std::to_string(model.mesh.row.size()) : "") << "; rank "
      << model.world.rank() << " holds " << std::fixed << std::setprecision(1)
      << 100.0 * local_sharding_ratio() << "%, shards " << bytes_text(memory_stats().parameter_bytes)
      << ", slots " << bytes_text(memory_stats().arena_bytes) << "\n";
  for (const auto& unit : model.units) describe_unit(out, *unit, model.mesh);
  return out.str();
}

}  // namespace fsdp
