#include "checkpoint/run_state.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <fsdp/error.h>

#include <charconv>

namespace fsdp::detail {

namespace {

constexpr const char* kValue = "value.";

// LibTorch has no other way to a scheduler's position.
struct SchedulerAccess : torch::optim::LRScheduler {
  static unsigned& steps(LRScheduler& scheduler) { return scheduler.*(&SchedulerAccess::step_count_); }
};

std::string generator_name(const char* kind, int rank) {
  return std::string("rng.") + kind + "." + std::to_string(rank);
}

at::Generator device_generator(const Model& model) {
  return at::globalContext().defaultGenerator(model.world.device());
}
at::Generator cpu_generator() { return at::globalContext().defaultGenerator(at::Device(at::kCPU)); }

at::Tensor state_of(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state().cpu();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

void seed(at::Generator generator, uint64_t number) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(number);
}

Json value_json(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&value)) return {{"int", *integer}};
  if (const auto* number = std::get_if<double>(&value)) return {{"float", number_json(*number)}};
  return std::get<std::string>(value);
}

Value value_of(const Json& json, const std::string& name) {
  const std::string where = "value '" + name + "'";
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  const JsonObject object(json, where);
  if (object.has("int")) return object.integer("int");
  return number_of(object.at("float"), where);
}

Json sampler_json(const SamplerState& state) {
  return {{"epoch", state.epoch},
          {"taken", state.taken},
          {"dataset_size", state.dataset_size},
          {"seed", std::to_string(state.options.seed)},
          {"shuffle", state.options.shuffle},
          {"drop_last", state.options.drop_last}};
}

uint64_t word_of(const JsonObject& object, const char* key) {
  const std::string digits = object.text(key);
  uint64_t word = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), word);
  if (error != std::errc() || end != digits.data() + digits.size())
    object.fail(std::string("'") + key + "' is not a number");
  return word;
}

SamplerState sampler_of(const JsonObject& object) {
  return {.epoch = static_cast<size_t>(object.integer("epoch", 0)),
          .taken = static_cast<size_t>(object.integer("taken", 0)),
          .dataset_size = static_cast<size_t>(object.integer("dataset_size", 0)),
          .options = {.shuffle = object.flag("shuffle"),
                      .seed = word_of(object, "seed"),
                      .drop_last = object.flag("drop_last")}};
}

bool in_state_file(const Manifest& manifest, const SavedTensor& tensor) {
  const auto file = static_cast<size_t>(tensor.boxes.front().file);
  return manifest.files[file].name.find("-state-") != std::string::npos;
}

// Neighbouring steps and ranks get unrelated seeds.
uint64_t derived_seed(uint64_t base, int64_t step, int rank) {
  return microbatch_seed(base, step, static_cast<int64_t>(rank));
}

}  // namespace

Json run_json(const RunState& run, const Model& model) {
  Json json = Json::object();
  Json values = Json::object();
  for (const auto& [name, value] : run.values)
    if (!std::holds_alternative<at::Tensor>(value)) values[name] = value_json(value);
  json["values"] = values;
  if (run.scheduler != nullptr) json["scheduler"] = {{"steps", SchedulerAccess::steps(*run.scheduler)}};
  if (run.scaler != nullptr) {
    const GradScalerState& state = run.scaler->state_dict();
    json["scaler"] = {{"scale", number_json(state.scale)}, {"growth_tracker", state.growth_tracker}};
  }
  if (run.sampler != nullptr) json["sampler"] = sampler_json(run.sampler->state_dict());
  if (model.mode) json["reproducible"] = {{"step", model.mode->step}};
  if (run.rng) json["rng"] = {{"seed", std::to_string(cpu_generator().current_seed())}};
  if (!run.model_config.empty())
    json["model_config"] = parse_json(run.model_config, "RunState::model_config");
  return json;
}

void set_run(RunState& run, Model& model, const Json& json) {
  const JsonObject object(json, "the run's values");
  if (object.has("values"))
    for (const auto& [name, value] : object.object("values").json().items())
      run.values[name] = value_of(value, name);
  if (run.scheduler != nullptr && object.has("scheduler"))
    SchedulerAccess::steps(*run.scheduler) =
        static_cast<unsigned>(object.object("scheduler").integer("steps", 0, UINT32_MAX));
  if (run.scaler != nullptr && object.has("scaler")) {
    const JsonObject scaler = object.object("scaler");
    run.scaler->load_state_dict({.scale = number_of(scaler.at("scale"), "the scale"),
                                 .growth_tracker = scaler.integer("growth_tracker", 0)});
  }
  if (run.sampler != nullptr && object.has("sampler"))
    run.sampler->load_state_dict(sampler_of(object.object("sampler")));
  if (model.mode && object.has("reproducible"))
    model.mode->step = object.object("reproducible").integer("step", 0);
  if (object.has("model_config")) run.model_config = object.at("model_config").dump();
}

std::vector<Held> held_run(const RunState& run, const Model& model) {
  std::vector<Held> all;
  const int rank = model.world.rank();
  if (run.rng) {
    all.push_back(make_whole(generator_name("cpu", rank), state_of(cpu_generator())));
    if (!model.world.device().is_cpu())
      all.push_back(make_whole(generator_name("device", rank), state_of(device_generator(model))));
  }
  if (rank == 0)
    for (const auto& [name, value] : run.values)
      if (const auto* tensor = std::get_if<at::Tensor>(&value))
        all.push_back(make_whole(kValue + name, *tensor));
  return all;
}

RunTensors prepare_run(const RunState& run, const Model& model, const Manifest& manifest) {
  RunTensors tensors;
  const auto hole = [&](const std::string& name, const SavedTensor& saved) {
    std::vector<int64_t> shape = saved.shape;
    if (saved.real_pairs) shape.pop_back();
    const auto dtype = saved.real_pairs ? at::kComplexDouble : dtype_of(saved.dtype);
    if (!dtype) throw CheckpointError("'" + name + "' has a dtype this build does not know");
    const at::Tensor memory = at::empty(shape, at::TensorOptions().dtype(*dtype));
    tensors.holes.push_back(make_whole(name, memory));  // contiguous: the same memory
    return memory;
  };
  // A sampler that does not fit is refused here, before anything is changed.
  if (run.sampler != nullptr && manifest.run.contains("sampler"))
    Sampler(*run.sampler)
        .load_state_dict(sampler_of(JsonObject(manifest.run.at("sampler"), "the saved sampler")));
  for (auto saved = manifest.tensors.lower_bound(kValue);
       saved != manifest.tensors.end() && saved->first.starts_with(kValue); ++saved)
    if (in_state_file(manifest, saved->second))  // a module may be called "value" too
      tensors.values[saved->first.substr(std::string(kValue).size())] = hole(saved->first, saved->second);
  if (!run.rng || manifest.world != model.world.size()) return tensors;
  const int rank = model.world.rank();
  for (const auto& [kind, memory] :
       {std::pair("cpu", &tensors.cpu_generator), std::pair("device", &tensors.device_generator)})
    if (const auto saved = manifest.tensors.find(generator_name(kind, rank)); saved != manifest.tensors.end())
      *memory = hole(saved->first, saved->second);
  return tensors;
}

void set_run_tensors(RunState& run, const Model& model, const Manifest& manifest, const RunTensors& tensors) {
  for (const auto& [name, tensor] : tensors.values) run.values[name] = tensor;
  if (!run.rng || !manifest.run.contains("rng")) return;
  const uint64_t base = word_of(JsonObject(manifest.run.at("rng"), "the run's generators"), "seed");
  const auto set = [&](const at::Generator& generator, const at::Tensor& state) {
    if (state.defined())
      set_state(generator, state);
    else
      seed(generator, derived_seed(base, manifest.step, model.world.rank()));
  };
  set(cpu_generator(), tensors.cpu_generator);
  if (!model.world.device().is_cpu()) set(device_generator(model), tensors.device_generator);
}

}  // namespace fsdp::detail
