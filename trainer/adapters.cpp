#include "trainer/adapters.h"

#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "trainer/same_run.h"

namespace fsdp::train {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kBase = "base_weights";
constexpr const char* kSeed = "base_seed";
constexpr const char* kMeanSquare = "base_mean_square";

bool is_base(const std::string& name) { return !models::is_adapter(name); }

std::string load_part(const std::string& path, RunState& state, bool (*wanted)(const std::string& name)) {
  const std::string from = load(path, state, {.weights_only = true, .filter = wanted, .cast = true}).path;
  return fs::absolute(from).lexically_normal().string();
}

bool is_adapter_name(const std::string& name) { return models::is_adapter(name); }

}  // namespace

WeightSources weight_sources(const config::Settings& settings, const ModelSpec& spec) {
  WeightSources sources{.pretrained = spec.pretrained, .seed = settings.integer("training.seed")};
  if (settings.has("training.init_from")) sources.init_from = settings.text("training.init_from");
  return sources;
}

BaseWeights load_start_of_adapters(const World& world, const ShardedModel& model,
                                   const std::string& model_config, const WeightSources& sources) {
  RunState state{.model = model, .model_config = model_config};
  const auto beneath = sources.init_from.empty() ? std::nullopt : saved_base(sources.init_from);
  if (beneath && sources.pretrained.empty()) {
    load_base(world, model, *beneath, {.seed = sources.seed});
    load_part(sources.init_from, state, is_adapter_name);
    return *beneath;
  }
  const std::string& path = beneath || sources.init_from.empty() ? sources.pretrained : sources.init_from;
  BaseWeights base{.path = {}, .seed = sources.seed};
  if (!path.empty()) base.path = load_part(path, state, is_base);
  if (beneath) load_part(sources.init_from, state, is_adapter_name);
  base.mean_square = mean_square_of_base(world, model);
  return base;
}

void load_base(const World& world, const ShardedModel& model, const BaseWeights& base,
               const WeightSources& sources) {
  if (base.path.empty()) {
    if (base.seed == sources.seed) return;
    throw CheckpointError("the base weights of these adapters were drawn from training.seed " +
                          std::to_string(base.seed) + "; it is " + std::to_string(sources.seed) + " now");
  }
  const std::string& configured = sources.init_from.empty() ? sources.pretrained : sources.init_from;
  const bool moved = !fs::exists(base.path);
  if (moved && (configured.empty() || !fs::exists(configured)))
    throw CheckpointError("the base weights of these adapters came from " + base.path +
                          ", which is not there any more. Name their folder by model.pretrained or "
                          "training.init_from");
  RunState state{.model = model};
  const std::string from = load_part(moved ? configured : base.path, state, is_base);
  const double found = mean_square_of_base(world, model);
  // A sum of fp32 values rounds in the 16th digit. Weights that are cast to 16 bits round in the third.
  bool narrow = false;
  for (const at::Tensor& slice : model.parameters()) narrow = narrow || slice.scalar_type() != at::kFloat;
  const double same = narrow ? 1e-3 : 1e-9;
  if (base.mean_square > 0 && std::abs(found - base.mean_square) > same * base.mean_square)
    throw CheckpointError("the base weights of these adapters came from " + base.path + "; those in " + from +
                          " are others (mean square " + std::to_string(found) + ", it was " +
                          std::to_string(base.mean_square) + "). Name the right ones by training.init_from");
}

void set_base(std::map<std::string, Value>& values, const BaseWeights& base) {
  values[kBase] = base.path;
  values[kSeed] = base.seed;
  values[kMeanSquare] = base.mean_square;
}

BaseWeights base_of(const std::map<std::string, Value>& values, const std::string& checkpoint) {
  const auto path = values.find(kBase), seed = values.find(kSeed);
  if (path == values.end() || seed == values.end())
    throw CheckpointError(checkpoint + " was saved without LoRA: lora.rank is for new runs");
  const auto mean_square = values.find(kMeanSquare);
  return {.path = std::get<std::string>(path->second),
          .seed = std::get<int64_t>(seed->second),
          .mean_square = mean_square == values.end() ? 0 : std::get<double>(mean_square->second)};
}

std::optional<BaseWeights> saved_base(const std::string& checkpoint) {
  const Json run = Json::parse(inspect_checkpoint(checkpoint).run);
  const Json values = run.value("values", Json::object());
  if (!values.contains(kBase) || !values.contains(kSeed)) return std::nullopt;
  const Json mean_square = values.value(kMeanSquare, Json::object()).value("float", Json());
  return BaseWeights{.path = values.at(kBase).get<std::string>(),
                     .seed = values.at(kSeed).at("int").get<int64_t>(),
                     .mean_square = mean_square.is_number() ? mean_square.get<double>() : 0.0};
}

void check_same_adapters(const std::string& saved, const std::string& wanted, const std::string& checkpoint) {
  const auto adapters = [](const std::string& text) {
    const Json config = text.empty() ? Json::object() : Json::parse(text);
    return config.value("lora", Json());
  };
  const Json theirs = adapters(saved), ours = adapters(wanted);
  if (theirs != ours)
    throw CheckpointError(checkpoint + " has the adapters " + theirs.dump() + "; the configuration says " +
                          ours.dump() + ". A run keeps its lora section");
}

}  // namespace fsdp::train
