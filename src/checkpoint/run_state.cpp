#include "checkpoint/run_state.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <fsdp/error.h>

#include <charconv>

namespace fsdp::detail {

namespace {

constexpr const char* kValue = "value.";

std::string rank_value(int rank) { return "rank_value." + std::to_string(rank) + "."; }

void require_utf8(const std::string& text, const std::string& what) {
  try {
    (void)Json(text).dump();
  } catch (const Json::exception&) {
    TORCH_CHECK(false, "fsdp: ", what,
                " is not UTF-8, as every text in a checkpoint is. Save bytes as a tensor of dtype uint8");
  }
}

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
  const std::string where = "value '" + printable(name) + "'";
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

Json values_json(const std::map<std::string, Value>& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) {
    require_utf8(name, "the name '" + printable(name) + "' of a value");
    if (const auto* text = std::get_if<std::string>(&value))
      require_utf8(*text, "the value '" + printable(name) + "'");
    if (!std::holds_alternative<at::Tensor>(value)) json[name] = value_json(value);
  }
  return json;
}

Json run_json(const RunState& run) {
  Json json = {{"values", values_json(run.values)}};
  if (run.scaler != nullptr) {
    const GradScalerState& state = run.scaler->state_dict();
    json["scaler"] = {{"scale", number_json(state.scale)}, {"growth_tracker", state.growth_tracker}};
  }
  if (run.sampler != nullptr) json["sampler"] = sampler_json(run.sampler->state_dict());
  if (run.rng) json["rng"] = {{"seed", std::to_string(cpu_generator().current_seed())}};
  if (!run.model_config.empty())
    json["model_config"] = parse_json(run.model_config, "RunState::model_config");
  return json;
}

std::vector<Held> held_run(const RunState& run, const Model& model) {
  std::vector<Held> all;
  const int rank = model.world.rank();
  if (run.rng) {
    all.push_back(make_whole(generator_name("cpu", rank), state_of(cpu_generator())));
    if (!model.world.device().is_cpu())
      all.push_back(make_whole(generator_name("device", rank), state_of(device_generator(model))));
  }
  const auto hold = [&](const std::string& prefix, const std::map<std::string, Value>& values) {
    for (const auto& [name, value] : values)
      if (const auto* tensor = std::get_if<at::Tensor>(&value))
        all.push_back(make_whole(prefix + name, *tensor));
  };
  if (rank == 0) hold(kValue, run.values);
  hold(rank_value(rank), run.rank_values);
  return all;
}

namespace {

class RunReader {
 public:
  RunReader(const RunState& run, const Model& model, const Manifest& manifest)
      : run_(run), model_(model), manifest_(manifest), object_(manifest.run, "the run's values") {}

  PreparedRun read() {
    if (object_.has("values")) add_values(object_.at("values"), made_.values);
    add_tensors(kValue, made_.values);
    read_rank_values();
    read_positions();
    if (run_.rng && object_.has("rng")) read_generators();
    return std::move(made_);
  }

 private:
  using Values = std::map<std::string, Value>;

  static void add_values(const Json& json, Values& values) {
    for (const auto& [name, value] : JsonObject(json, "saved values").json().items())
      values[name] = value_of(value, name);
  }

  at::Tensor hole(const std::string& name, const SavedTensor& saved) {
    std::vector<int64_t> shape = saved.shape;
    if (saved.real_pairs) shape.pop_back();
    const auto dtype = saved.real_pairs ? at::kComplexDouble : dtype_of(saved.dtype);
    if (!dtype) throw CheckpointError("'" + printable(name) + "' has a dtype this build does not know");
    const at::Tensor memory = at::empty(shape, at::TensorOptions().dtype(*dtype));
    made_.holes.push_back(make_whole(name, memory));  // contiguous: the same memory
    return memory;
  }

  void add_tensors(const std::string& prefix, Values& values) {
    for (auto saved = manifest_.tensors.lower_bound(prefix);
         saved != manifest_.tensors.end() && saved->first.starts_with(prefix); ++saved)
      if (in_state_file(manifest_, saved->second))  // a module may have such a name too
        values[saved->first.substr(prefix.size())] = hole(saved->first, saved->second);
  }

  void read_rank_values() {
    if (!object_.has(kRankValues)) return;
    const Json& ranks = object_.at(kRankValues);
    if (!ranks.is_array() || ranks.size() != static_cast<size_t>(manifest_.world))
      object_.fail(std::string("'") + kRankValues + "' is not a list with a member per rank");
    const auto of_rank = [&](int rank, Values& values) {
      add_values(ranks[static_cast<size_t>(rank)], values);
      add_tensors(rank_value(rank), values);
    };
    if (manifest_.world == model_.world.size()) return of_rank(model_.world.rank(), made_.own_values);
    made_.all_values.resize(ranks.size());
    for (int rank = 0; rank < manifest_.world; ++rank)
      of_rank(rank, made_.all_values[static_cast<size_t>(rank)]);
  }

  // Tries on copies whether load_state_dict() would refuse.
  void read_positions() {
    if (run_.scaler != nullptr && object_.has("scaler")) {
      const JsonObject scaler = object_.object("scaler");
      made_.scaler = {.scale = number_of(scaler.at("scale"), "the scale"),
                      .growth_tracker = scaler.integer("growth_tracker", 0)};
      GradScaler(*run_.scaler).load_state_dict(*made_.scaler);
    }
    if (run_.sampler != nullptr && object_.has("sampler")) {
      made_.sampler = sampler_of(object_.object("sampler"));
      Sampler(*run_.sampler).load_state_dict(*made_.sampler);
    }
    if (object_.has("model_config")) made_.model_config = object_.at("model_config").dump();
  }

  void read_generators() {
    made_.seed = word_of(object_.object("rng"), "seed");
    if (manifest_.world != model_.world.size()) return;
    const int rank = model_.world.rank();
    for (const auto& [kind, memory] :
         {std::pair("cpu", &made_.cpu_generator), std::pair("device", &made_.device_generator)})
      if (const auto saved = manifest_.tensors.find(generator_name(kind, rank));
          saved != manifest_.tensors.end())
        *memory = hole(saved->first, saved->second);
  }

  const RunState& run_;
  const Model& model_;
  const Manifest& manifest_;
  const JsonObject object_;
  PreparedRun made_;
};

}  // namespace

PreparedRun prepare_run(const RunState& run, const Model& model, const Manifest& manifest) {
  return RunReader(run, model, manifest).read();
}

void check_generators(const PreparedRun& prepared, const Model& model) {
  const auto check = [](const at::Generator& generator, const at::Tensor& state) {
    if (state.defined()) generator.clone().set_state(state);
  };
  check(cpu_generator(), prepared.cpu_generator);
  if (!model.world.device().is_cpu()) check(device_generator(model), prepared.device_generator);
}

void set_run(RunState& run, const Model& model, const Manifest& manifest, const PreparedRun& prepared) {
  run.step = manifest.step;
  for (const auto& [name, value] : prepared.values) run.values[name] = value;
  for (const auto& [name, value] : prepared.own_values) run.rank_values[name] = value;
  if (prepared.scaler) run.scaler->load_state_dict(*prepared.scaler);
  if (prepared.sampler) run.sampler->load_state_dict(*prepared.sampler);
  if (prepared.model_config) run.model_config = *prepared.model_config;
  if (!prepared.seed) return;
  const auto set = [&](const at::Generator& generator, const at::Tensor& state) {
    if (state.defined())
      set_state(generator, state);
    else
      seed(generator, derived_seed(*prepared.seed, manifest.step, model.world.rank()));
  };
  set(cpu_generator(), prepared.cpu_generator);
  if (!model.world.device().is_cpu()) set(device_generator(model), prepared.device_generator);
}

}  // namespace fsdp::detail
