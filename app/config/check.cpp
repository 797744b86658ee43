#include "app/config/check.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "app/config/check_model.h"
#include "app/config/example.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;

bool is_on(const Settings& settings, const std::string& key) { return settings.peek(key) == true; }

// The keys that contradict each other; the first of them should be changed.
class Checking {
 public:
  Checking(const Settings& settings, Problems& problems) : settings_(settings), problems_(problems) {}

  void refuse_if(bool wrong, const Keys& keys, const std::string& text) {
    if (!wrong) return;
    const Blame at = blame(settings_, keys);
    problems_.add(at.where, at.key, text);
  }

  void sharding() {
    refuse_if(
        settings_.peek("distributed.strategy") == "fsdp" && !is_on(settings_, "distributed.fsdp.enabled"),
        {"distributed.fsdp.enabled", "distributed.strategy"},
        "found fsdp.enabled false with " + described(settings_, "distributed.strategy") +
            ". Set enabled to true, or the strategy to ddp");
    refuse_if(is_on(settings_, "distributed.fsdp.activation_checkpointing") && has("model.script"),
              {"distributed.fsdp.activation_checkpointing", "model.script"},
              "found activation checkpointing with " + described(settings_, "model.script") +
                  ". Blocks of a TorchScript model cannot be computed again: set it to false");
    const Json& adapters = settings_.peek("lora.rank");
    refuse_if(adapters != 0 && has("model.script"), {"lora.rank", "model.script"},
              "found " + shown(adapters) + " with " + described(settings_, "model.script") +
                  ". Layers of a TorchScript model are compiled and get no adapters: set it to 0");
    const bool reproducible = is_on(settings_, "training.reproducible");
    refuse_if(reproducible && settings_.peek("training.precision") == "bf16-true",
              {"training.precision", "training.reproducible"},
              "found bf16-true with " + described(settings_, "training.reproducible") +
                  ", which sums gradients in fp32. Use 32 or bf16-mixed");
    refuse_if(reproducible && is_on(settings_, "distributed.sync_batchnorm"),
              {"distributed.sync_batchnorm", "training.reproducible"},
              "found sync_batchnorm with " + described(settings_, "training.reproducible") +
                  ": statistics of all ranks depend on their number. Set one of them to false");
  }

  void steps() {
    const Json& most = settings_.peek("training.max_steps");
    if (!most.is_number()) return;
    const int64_t steps = most.get<int64_t>(), warmup = integer("schedule.warmup_steps");
    refuse_if(warmup > steps, {"schedule.warmup_steps", "training.max_steps"},
              "found a warm-up of " + std::to_string(warmup) + " steps, but " +
                  described(settings_, "training.max_steps") + " ends the run before. Expected at most that");
    const Json& decay = settings_.peek("schedule.decay_steps");
    const bool decays = decay.is_number() && settings_.peek("schedule.name") != "constant";
    refuse_if(decays && warmup <= steps && warmup + decay.get<int64_t>() > steps,
              {"schedule.decay_steps", "schedule.warmup_steps"},
              "found a decay of " + shown(decay) + " steps after a warm-up of " + std::to_string(warmup) +
                  ", but " + described(settings_, "training.max_steps") + ". Expected at most " +
                  std::to_string(steps - warmup));
  }

  void data() {
    const std::string format = settings_.peek("data.format").get<std::string>();
    const bool is_file = format == "tokens" || format == "text" || format == "jsonl" || format == "auto";
    refuse_if(is_file && !has("data.train"), {"data.format", "data.train"},
              "found " + format + " without data.train, expected the files to train on");
    refuse_if(!is_file && has("data.train"), {"data.train", "data.format"},
              "found files to train on, but " + described(settings_, "data.format") +
                  " reads none. Remove one of them");
    refuse_if(!is_file && has("data.validation"), {"data.validation", "data.format"},
              "found files for evaluation, but " + described(settings_, "data.format") +
                  " reads none. Remove one of them");
  }

  void evaluation() {
    const bool has_data = has("data.validation") ||
                          settings_.peek("data.validation_fraction").get<double>() > 0 ||
                          settings_.peek("data.format") == "synthetic";
    const bool runs = integer("eval.every_steps") > 0 && has_data;
    const std::string why = integer("eval.every_steps") == 0
                                ? described(settings_, "eval.every_steps")
                                : described(settings_, "data.validation_fraction");
    const Keys causes{"eval.every_steps", "data.validation_fraction"};
    refuse_if(!runs && is_on(settings_, "checkpoint.keep_best"),
              {"checkpoint.keep_best", causes[0], causes[1]},
              "found keep_best without evaluation (" + why + "). Evaluate, or set keep_best to false");
    refuse_if(!runs && integer("eval.patience") > 0, {"eval.patience", causes[0], causes[1]},
              "found a patience of " + shown(settings_.peek("eval.patience")) + " without evaluation (" +
                  why + "). Evaluate, or set patience to 0");
  }

 private:
  bool has(const std::string& key) const { return !settings_.peek(key).is_null(); }
  int64_t integer(const std::string& key) const { return settings_.peek(key).get<int64_t>(); }

  const Settings& settings_;
  Problems& problems_;
};

// A key that needs another value of some key than that has.
void note_unused(const Settings& settings, std::vector<std::string>& notes) {
  for (const Key& key : schema()) {
    if (key.needs.empty() || !settings.is_given(key.path) || settings.peek(key.path) == key.value) continue;
    const std::string now = shown(settings.peek(key.needs));
    if (std::find(key.needed.begin(), key.needed.end(), now) == key.needed.end())
      notes.push_back(described(settings, key.path) + " has no effect: " + key.needs + " is " + now);
  }
}

void note_without_effect(const Settings& settings, const Machine& machine, std::vector<std::string>& notes) {
  const std::string offload = "distributed.fsdp.cpu_offload", original = "distributed.fsdp.use_orig_params";
  if (machine.gpus == 0 && is_on(settings, offload))
    notes.push_back(described(settings, offload) +
                    " changes nothing on CPU ranks: all is in host memory already");
  if (settings.is_given(original) && !is_on(settings, original))
    notes.push_back(described(settings, original) +
                    " changes nothing: optimizers always see the original parameters");
  if (is_on(settings, "distributed.sync_batchnorm") && !settings.peek("model.config").is_null())
    notes.push_back(described(settings, "distributed.sync_batchnorm") +
                    " has no effect: the model has no batch norm");
  for (const std::string key : {"lora.alpha", "lora.targets"})
    if (settings.is_given(key) && settings.peek("lora.rank") == 0)
      notes.push_back(described(settings, key) + " has no effect: lora.rank is 0");
}

bool matches_files(const std::string& pattern) {
  glob_t found{};
  const bool any = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return any;
}

void check_file(const Settings& settings, const std::string& key, const std::string& path,
                Problems& problems) {
  std::error_code ignored;
  const bool may_be_pattern = key == "data.train" || key == "data.validation";
  if (!fs::exists(path, ignored) && !(may_be_pattern && matches_files(path)))
    problems.add(settings.origin(key).text, key,
                 "found '" + path + "', which does not exist. Expected a path from this folder, or from /");
}

}  // namespace

std::string described(const Settings& settings, const std::string& key) {
  return key + " " + shown(settings.peek(key)) + " (" + settings.origin(key).text + ")";
}

Blame blame(const Settings& settings, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (!settings.is_given(key)) continue;
    const std::string prefix = std::string(kModelConfig) + ".";
    const Json& model = settings.peek("model.config");
    const bool is_model = key.starts_with(prefix) && model.is_string();
    return {settings.origin(key).text,
            is_model ? model.get<std::string>() + "." + key.substr(prefix.size()) : key};
  }
  return {settings.file().empty() ? kExampleName : settings.file(), keys.front()};
}

void check(const Settings& settings, const Machine& machine, std::vector<std::string>& notes,
           Problems& problems) {
  Checking checking(settings, problems);
  checking.sharding();
  checking.steps();
  checking.data();
  checking.evaluation();
  check_model(settings, problems);
  note_unused(settings, notes);
  note_without_effect(settings, machine, notes);
}

void check_machine(const Settings& settings, const Machine& machine, Problems& problems) {
  for (const std::string key : {"data.train", "data.validation"})
    if (settings.peek(key).is_array())
      for (const Json& path : settings.peek(key))
        check_file(settings, key, path.get<std::string>(), problems);
  for (const std::string key : {"model.script", "model.pretrained", "training.init_from", "data.tokenizer"}) {
    const Json& path = settings.peek(key);
    // A run that goes on has its start weights behind it.
    const bool is_start = key == "training.init_from";
    if (is_start && (path == "none" || settings.origin(key).layer == Layer::run)) continue;
    if (path.is_string() && path != "byte") check_file(settings, key, path.get<std::string>(), problems);
  }
  const Json& devices = settings.peek("distributed.devices");
  // A launcher may be silent about the ranks of this machine, and show each of them one GPU.
  const bool is_launched = machine.world_size > 0;
  if (machine.gpus > 0 && !is_launched && devices.is_number() && devices.get<int64_t>() > machine.gpus) {
    const Blame at = blame(settings, {"distributed.devices"});
    problems.add(at.where, at.key,
                 "found " + shown(devices) + ", expected at most the GPUs of this machine, " +
                     std::to_string(machine.gpus) + ". CUDA_VISIBLE_DEVICES= (empty) trains on CPU ranks");
  }
}

}  // namespace fsdp::config
