#include "checkpoint/members.h"

#include <algorithm>
#include <array>

#include "checkpoint/model_state.h"
#include "checkpoint/optimizer_state.h"
#include "launch/world_state.h"

namespace fsdp::detail {

namespace {

constexpr const char* kParts = "parts";
constexpr std::array kTaken{"state", "value", "rank_value", "rng",
                            "flat",  "model", "transformer"};  // prefixes of other tensors' names

// LibTorch has no other access to a scheduler's position.
struct SchedulerAccess : torch::optim::LRScheduler {
  static unsigned& steps(LRScheduler& scheduler) { return scheduler.*(&SchedulerAccess::step_count_); }
};

void check_name(const std::string& name, const Model& own) {
  const bool plain = !name.empty() && name.find('.') == std::string::npos && is_plain_name(name) &&
                     std::find(kTaken.begin(), kTaken.end(), name) == kTaken.end();
  TORCH_CHECK(plain, "fsdp: '", name,
              "' cannot be the name of a part of a run: use letters, digits, '-' and '_', and none of "
              "state, value, rank_value, rng, flat, model, transformer");
  const std::string prefix = name + ".";
  const auto check = [&](const std::string& tensor) {
    TORCH_CHECK(!tensor.starts_with(prefix), "fsdp: a part of the run is called '", name,
                "', and the run's model has a tensor '", tensor,
                "': the checkpoint could not tell them apart. Give the part another name");
  };
  for (const UnitParam* param : own.params)
    for (const std::string& tensor : param->names) check(tensor);
  for (const auto& [tensor, value] : own_tensors(own)) check(tensor);
}

}  // namespace

std::vector<Member> members_of(const RunState& run) {
  Model& own = model_of(run.model.engine());
  std::vector<Member> members{{.model = &own,
                               .optimizer = run.optimizer,
                               .scheduler = run.scheduler,
                               .format = run.optimizer_format}};
  for (const auto& [name, part] : run.parts) {
    check_name(name, own);
    Model& model = part.model ? model_of(part.model->engine()) : own;
    TORCH_CHECK(&model == &own || &model.world.state() == &own.world.state(), "fsdp: the part '", name,
                "' of the run was sharded in another World than the run's model");
    const bool another = &model != &own;
    members.push_back({.name = name,
                       .model = &model,
                       .brings_model = another,
                       .prefix = another ? name + "." : "",
                       .optimizer = part.optimizer,
                       .scheduler = part.scheduler,
                       .format = part.optimizer_format});
  }
  return members;
}

std::vector<Model*> models_of(const RunState& run) {
  std::vector<Model*> models{&model_of(run.model.engine())};
  for (const auto& [name, part] : run.parts) {
    Model* model = part.model ? &model_of(part.model->engine()) : nullptr;
    if (model != nullptr && std::find(models.begin(), models.end(), model) == models.end())
      models.push_back(model);
  }
  return models;
}

Json member_json(const Member& member) {
  Json json = Json::object();
  if (member.optimizer != nullptr) {
    const OptimizerState optimizer(*member.model, *member.optimizer, member.format, member.prefix);
    json["optimizer"] = {{"type", optimizer.type()}, {"groups", optimizer.groups()}};
  }
  if (member.scheduler != nullptr) json["scheduler"] = {{"steps", SchedulerAccess::steps(*member.scheduler)}};
  if (member.brings_model && member.model->mode) json["reproducible"] = {{"step", member.model->mode->step}};
  if (!member.name.empty()) json = {{kParts, {{member.name, std::move(json)}}}};
  if (!member.name.empty()) json[kParts][member.name]["model"] = member.brings_model;
  return json;
}

const Json* saved_json(const Manifest& manifest, const Member& member) {
  if (member.name.empty()) return &manifest.run;
  if (!manifest.run.contains(kParts)) return nullptr;
  const JsonObject parts(manifest.run.at(kParts), "the parts of the run");
  return parts.has(member.name.c_str()) ? &parts.at(member.name.c_str()) : nullptr;
}

bool is_of_absent_part(const Manifest& manifest, const std::vector<Member>& members,
                       const std::string& name) {
  if (!manifest.run.contains(kParts)) return false;
  const JsonObject parts(manifest.run.at(kParts), "the parts of the run");
  for (const auto& part : parts.json().items()) {
    const bool here = std::any_of(members.begin(), members.end(), [&](const Member& one) {
      return one.brings_model && one.name == part.key();
    });
    if (!here && name.starts_with(part.key() + ".") &&
        JsonObject(part.value(), "a part of the run").flag("model"))
      return true;
  }
  return false;
}

Positions positions_of(const Member& member, const Json& saved) {
  Positions positions;
  const JsonObject object(saved, "the run's values");
  if (member.scheduler != nullptr && object.has("scheduler"))
    positions.scheduler_steps =
        static_cast<unsigned>(object.object("scheduler").integer("steps", 0, UINT32_MAX));
  if (member.brings_model && member.model->mode && object.has("reproducible"))
    positions.reproducible_step = object.object("reproducible").integer("step", 0);
  return positions;
}

void set_positions(const Member& member, const Positions& positions) {
  if (positions.scheduler_steps) SchedulerAccess::steps(*member.scheduler) = *positions.scheduler_steps;
  if (positions.reproducible_step) member.model->mode->step = *positions.reproducible_step;
}

}  // namespace fsdp::detail
