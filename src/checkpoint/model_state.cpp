#include "checkpoint/model_state.h"

#include <set>

namespace fsdp::detail {

Held held_of(const Model& model, const UnitParam& param, std::string name, const at::Tensor& flat) {
  const Unit& unit = *param.unit;
  const ShardRange own = unit.spec.layout.range(param.placement, model.mesh.shard_index(unit.ranks()));
  return make_held(std::move(name), param.placement.param.shape, param.strides, own.start, flat);
}

bool saves_param(const Model& model, size_t index) {
  const UnitParam& param = *model.params[index];
  // Whole on every rank: ranks take turns. A tensor without elements is in no rank's shard.
  if (param.unit->ranks() == 1 || param.placement.numel == 0)
    return static_cast<int>(index % static_cast<size_t>(model.world.size())) == model.world.rank();
  const bool first_row = !model.mesh.column || model.mesh.column->rank() == 0;
  return first_row && param.slice.numel() > 0;
}

std::vector<Holding> held_params(const Model& model) {
  std::vector<Holding> all;
  for (size_t i = 0; i < model.params.size(); ++i) {
    const UnitParam& param = *model.params[i];
    all.push_back({.held = held_of(model, param, param.names.front(), param.slice.detach()),
                   .saves = saves_param(model, i)});
  }
  return all;
}

NamedTensors own_tensors(const Model& model) {
  std::set<std::string> sharded;
  for (const UnitParam* param : model.params) sharded.insert(param->names.begin(), param->names.end());
  NamedTensors tensors;
  for (const auto& param : model.module.named_parameters())
    if (!sharded.contains(param.key()) && param.value().defined())
      tensors.emplace_back(param.key(), param.value());
  for (const auto& buffer : model.module.named_buffers())
    if (buffer.value().defined()) tensors.emplace_back(buffer.key(), buffer.value());
  return tensors;
}

std::map<std::string, std::string> aliases_of(const Model& model) {
  std::map<std::string, std::string> aliases;
  for (const UnitParam* param : model.params)
    for (size_t i = 1; i < param->names.size(); ++i) aliases[param->names[i]] = param->names.front();
  return aliases;
}

void announce_writes(const Model& model) {
  for (const UnitParam* param : model.params) param->slice.detach().narrow(0, 0, 0).zero_();
}

}  // namespace fsdp::detail
