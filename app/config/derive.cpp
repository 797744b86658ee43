#include "app/config/derive.h"

#include <algorithm>
#include <bit>

#include "app/config/batch.h"
#include "app/config/check.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

// "training.max_steps (config.yaml:7)".
std::string named(const Settings& settings, const std::string& key) {
  return key + " (" + settings.origin(key).text + ")";
}

// A launcher's ranks are there already: what the configuration says cannot change them.
void derive_launched(Settings& settings, const Machine& machine, std::vector<std::string>& notes) {
  const bool knows_nodes = machine.local_size > 0 && machine.world_size % machine.local_size == 0;
  const Json& devices = settings.peek("distributed.devices");
  if (!knows_nodes && devices.is_number() && settings.ranks() == machine.world_size) return;
  const int nodes = knows_nodes ? machine.world_size / machine.local_size : 1;
  const std::vector<std::pair<std::string, int>> facts{{"distributed.num_nodes", nodes},
                                                       {"distributed.devices", machine.world_size / nodes}};
  for (const auto& [key, found] : facts) {
    if (settings.peek(key) == found) continue;
    if (settings.is_given(key))
      notes.push_back(key + ": " + std::to_string(found) + " (the launcher) instead of " +
                      shown(settings.peek(key)) + " (" + settings.origin(key).text + ")");
    settings.set(key, found, {Layer::derived, "the launcher"});
  }
}

void derive_devices(Settings& settings, const Machine& machine, std::vector<std::string>& notes) {
  if (machine.world_size > 0) return derive_launched(settings, machine, notes);
  const std::string key = "distributed.devices";
  if (settings.peek(key).is_string()) {
    const int found = machine.gpus > 0 ? machine.gpus : std::max(1, machine.cores);
    const std::string what = machine.gpus > 0 ? "GPUs" : "cores";
    notes.push_back(key + ": auto is " + std::to_string(found) + ", the " + what + " of this machine");
    settings.set(key, found, {Layer::derived, "auto: the " + what + " of this machine"});
    return;
  }
  const int64_t devices = settings.peek(key).get<int64_t>();
  if (machine.gpus == 0)
    notes.push_back(
        key + ": this machine has no GPU, so " +
        (devices == 1 ? "it is 1 CPU rank" : "they are " + std::to_string(devices) + " CPU ranks"));
  else if (devices > machine.gpus)
    notes.push_back(key + ": " + std::to_string(devices) + " are more than the GPUs of this machine, " +
                    std::to_string(machine.gpus));
}

void derive_strategy(Settings& settings, std::vector<std::string>& notes) {
  const std::string key = "distributed.strategy", sharding = "distributed.fsdp.sharding_strategy";
  if (settings.peek(key) == "auto") {
    const bool enabled = settings.peek("distributed.fsdp.enabled").get<bool>();
    const int64_t ranks = settings.ranks();
    if (ranks > 1)
      notes.push_back(key + ": auto is " +
                      (enabled ? "fsdp, since there are " + std::to_string(ranks) + " ranks"
                               : "ddp, since distributed.fsdp.enabled is false"));
    settings.set(key, enabled ? "fsdp" : "ddp", {Layer::derived, "auto"});
  }
  if (settings.peek(key) != "ddp" || settings.peek(sharding) == "NO_SHARD") return;
  if (settings.is_given(sharding))
    notes.push_back(named(settings, sharding) + " has no effect: strategy ddp is NO_SHARD");
  settings.set(sharding, "NO_SHARD", {Layer::derived, "strategy ddp"});
}

// The keys that a batch that does not fit rests on; the first one set is to be changed.
std::vector<std::string> causes(const BatchRequest& request) {
  const std::string devices = "distributed.devices", size = "training.batch_size";
  const std::string steps = "training.gradient_accumulation_steps", reproducible = "training.reproducible";
  if (request.reproducible && !std::has_single_bit(static_cast<uint64_t>(request.ranks)))
    return {devices, "distributed.num_nodes", reproducible};
  if (request.global_batch_size) return {"training.global_batch_size", size, devices};
  if (request.reproducible) return {steps, reproducible};
  return {size, steps, devices};
}

void derive_batch(Settings& settings, std::vector<std::string>& notes, Problems& problems) {
  const std::string global = "training.global_batch_size", steps = "training.gradient_accumulation_steps";
  const std::string size = "training.batch_size";
  BatchRequest request;
  request.batch_size = settings.peek(size).get<int64_t>();
  request.accumulation = settings.peek(steps).get<int64_t>();
  request.ranks = settings.ranks();
  request.reproducible = settings.peek("training.reproducible").get<bool>();
  const bool given = !settings.peek(global).is_null();
  if (given) request.global_batch_size = settings.peek(global).get<int64_t>();
  const BatchResult result = plan_batch(request);
  if (!result.problem.empty()) {
    const Blame at = blame(settings, causes(request));
    return problems.add(at.where, at.key, result.problem);
  }
  const int64_t accumulation = result.plan.accumulation;
  if (given && settings.is_given(steps) && accumulation != request.accumulation) {
    const std::string is = std::to_string(request.accumulation), would = std::to_string(accumulation);
    if (settings.origin(steps).layer > settings.origin(global).layer)
      return problems.add(settings.origin(steps).text, steps,
                          "found " + is + ", but " + named(settings, global) + " of " +
                              shown(settings.peek(global)) + " needs " + would + ". Set one of them only");
    notes.push_back(steps + ": " + would + " (from global_batch_size) instead of " + is + " (" +
                    settings.origin(steps).text + ")");
  }
  if (accumulation != request.accumulation)
    settings.set(steps, accumulation, {Layer::derived, "from global_batch_size"});
  if (!given)
    settings.set(global, result.plan.global_batch_size,
                 {Layer::derived, "batch_size x gradient_accumulation_steps x ranks"});
}

void derive_length(Settings& settings) {
  if (settings.peek("training.max_steps").is_null() && settings.peek("training.max_epochs").is_null())
    settings.set("training.max_steps", 1000, {Layer::standard, "default"});
}

// Files beat a format without files that a lower layer names.
void derive_format(Settings& settings, std::vector<std::string>& notes) {
  const std::string format = "data.format", train = "data.train";
  const Origin was = settings.origin(format);
  const std::string name = settings.peek(format).get<std::string>();
  const bool has_files = !settings.peek(train).is_null();
  if (!has_files || (name != "docs" && name != "synthetic") || was.layer >= settings.origin(train).layer)
    return;
  if (was.layer != Layer::standard)
    notes.push_back(format + ": auto (since " + settings.origin(train).text +
                    " sets data.train) instead of " + name + " (" + was.text + ")");
  settings.set(format, "auto", {Layer::derived, "data.train is set"});
}

void derive_tying(Settings& settings) {
  const Json& type = settings.peek("model_config.type");
  if (type.is_string() && settings.peek("model_config.tie_embeddings").is_null())
    settings.set("model_config.tie_embeddings", type == "gpt2",
                 {Layer::standard, "default of " + type.get<std::string>()});
}

// AdamW's moments have the dtype of the parameters, or a narrower one.
void derive_moments(Settings& settings, Problems& problems) {
  const std::string key = "optimizer.moments", precision = "training.precision";
  if (settings.peek(precision) != "bf16-true" || settings.peek("optimizer.name") != "adamw") return;
  if (settings.peek(key) == "bf16") return;
  if (settings.is_given(key))
    return problems.add(settings.origin(key).text, key,
                        "found fp32, but " + named(settings, precision) +
                            " bf16-true keeps all in bf16. Set moments: bf16, or precision: bf16-mixed");
  settings.set(key, "bf16", {Layer::derived, "precision bf16-true"});
}

struct SmokeValue {
  const char* key;
  Json value;
  bool only_less;  // keep a smaller number than this
};

const std::vector<SmokeValue>& smoke_values() {
  static const std::vector<SmokeValue> values{{"training.max_steps", 3, true},
                                              {"training.max_epochs", nullptr, false},
                                              {"training.batch_size", 2, true},
                                              {"training.gradient_accumulation_steps", 1, false},
                                              {"training.global_batch_size", nullptr, false},
                                              {"data.format", "synthetic", false},
                                              {"data.train", nullptr, false},
                                              {"data.validation", nullptr, false},
                                              {"data.sequence_length", 64, true},
                                              {"schedule.warmup_steps", 1, true},
                                              {"schedule.decay_steps", nullptr, false},
                                              {"checkpoint.every_steps", 0, false},
                                              {"checkpoint.every_minutes", 0.0, false},
                                              {"checkpoint.keep_best", false, false},
                                              {"eval.every_steps", 2, true},
                                              {"eval.batches", 1, false},
                                              {"eval.patience", 0, false},
                                              {"logging.log_file", nullptr, false},
                                              {"logging.tensorboard", false, false},
                                              {"wandb.use_wandb", false, false}};
  return values;
}

// Values that the environment or a flag set stay.
void derive_smoke(Settings& settings, std::vector<std::string>& notes) {
  if (settings.peek("mode") != "smoke") return;
  std::string changed;
  const auto is_typed = [&](const std::string& key) {
    return settings.origin(key).layer >= Layer::environment;
  };
  const bool own_data = is_typed("data.train") || is_typed("data.format");
  for (const SmokeValue& one : smoke_values()) {
    const Json& now = settings.peek(one.key);
    const bool is_source = std::string(one.key) == "data.format" || std::string(one.key) == "data.train" ||
                           std::string(one.key) == "data.validation";
    if (is_typed(one.key) || now == one.value || (own_data && is_source)) continue;
    if (one.only_less && now.is_number() && now.get<double>() <= one.value.get<double>()) continue;
    Json value = one.value;
    const Json& context = settings.peek("model_config.context_length");
    if (std::string(one.key) == "data.sequence_length" && context.is_number())
      value = std::min(value.get<int64_t>(), context.get<int64_t>());
    changed += (changed.empty() ? "" : ", ") + std::string(one.key) + " " + shown(value);
    settings.set(one.key, std::move(value), {Layer::derived, "mode smoke"});
  }
  notes.push_back("mode: smoke keeps nothing, and sets " + (changed.empty() ? "nothing else" : changed));
}

}  // namespace

void derive(Settings& settings, const Machine& machine, std::vector<std::string>& notes, Problems& problems) {
  derive_smoke(settings, notes);
  derive_length(settings);
  derive_format(settings, notes);
  derive_tying(settings);
  derive_moments(settings, problems);
  derive_devices(settings, machine, notes);
  derive_strategy(settings, notes);
  derive_batch(settings, notes, problems);
}

}  // namespace fsdp::config
