#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <optional>
#include <set>

#include "files/checkpoint_reader.h"
#include "files/hf_folder.h"
#include "files/lora_merge.h"
#include "files/model_config.h"
#include "files/weight_export.h"

namespace fsdp::detail {

namespace {

Json saved_config(const CheckpointReader& source) {
  const Json& run = source.manifest().run;
  if (!run.contains(kModelConfigKey)) return Json::object();
  if (run.at(kModelConfigKey).is_object()) return run.at(kModelConfigKey);
  throw CheckpointError(source.folder() + ", run value '" + kModelConfigKey + "' is not an object");
}

// The values of the checkpoint override those of its base weights, the given ones override both.
Json merged_config(const CheckpointReader& source, const CheckpointReader& weights,
                   const std::string& given) {
  Json config = saved_config(weights);
  config.update(saved_config(source));
  if (!given.empty()) {
    const Json more = parse_json(given, "the config given");
    if (!more.is_object()) throw CheckpointError("the config given is not a JSON object");
    config.update(more);
  }
  if (config.empty())
    throw CheckpointError(source.folder() + " has no run value '" + kModelConfigKey +
                          "', and no config was given. Give one (--config FILE, ExportOptions::config) with "
                          "what shapes do not say: model_type (gpt2 or llama), the heads, the epsilon of its "
                          "norms, for llama also max_position_embeddings");
  return config;
}

TensorTable table_of(const Manifest& manifest) {
  TensorTable table;
  for (const auto& [name, tensor] : manifest.tensors)
    if (manifest.is_of_model(name, tensor) && !manifest.is_of_part(name))
      table[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  return table;
}

HfLayout exported_layout(const Json& config, const TensorTable& table, const std::string& where) {
  HfLayout layout = hf_layout(config, table, where);
  if (layout.others.empty()) return layout;
  const std::string& name = layout.others.front();
  if (layout.aliases.contains(name))
    throw CheckpointError(where + ": its config says tie_word_embeddings, but '" + name +
                          "' is a tensor of its own. Give a config with tie_word_embeddings false");
  throw CheckpointError(where + ": tensor '" + name + "' is no part of a " + layout.model_type +
                        " language model of models/; transformers would not load it");
}

// The base weights of adapters that are saved alone: the given ones, or those that the run was trained with.
std::string base_path(const CheckpointReader& source, const std::string& given) {
  if (!given.empty()) return given;
  constexpr const char* kBase = "base_weights";
  const Json values = source.manifest().run.value("values", Json::object());
  std::string saved;
  if (values.is_object() && values.contains(kBase) && values.at(kBase).is_string())
    saved = values.at(kBase).get<std::string>();
  if (!saved.empty() && posix_files().exists(saved)) return saved;
  throw CheckpointError(
      source.folder() + " holds LoRA adapters alone, and their base weights are needed" +
      (saved.empty() ? "" : "; they came from " + printable(saved) + ", which is not there") +
      ". Name a checkpoint or a Hugging Face folder that has them (--base DIR, "
      "ExportOptions::base)");
}

// A checkpoint, and the base weights of its adapters if it has some.
struct Adapted {
  Adapted(const std::string& path, const ExportOptions& options) : source(posix_files(), path) {
    table = table_of(source.manifest());
    adapters = take_adapters(table);
    const bool alone = !adapters.empty() && table.empty();
    if (!alone && !options.base.empty())
      throw CheckpointError(source.folder() +
                            " has its weights: it is not one of adapters alone, so it has no "
                            "use for those in " +
                            options.base);
    if (!alone) return;
    base.emplace(posix_files(), base_path(source, options.base));
    table = table_of(base->manifest());
  }

  CheckpointReader& weights() { return base ? *base : source; }

  CheckpointReader source;
  std::optional<CheckpointReader> base;
  TensorTable table;     // of weights()
  TensorTable adapters;  // of source
};

// Takes `lora` out of the config, since the adapters are merged.
std::map<std::string, LowRankMatrix> adapters_of(Adapted& model, Json& config, const HfLayout& layout) {
  const Json lora = config.value("lora", Json::object());
  config.erase("lora");
  auto matrices = read_adapters(model.source, model.adapters, lora, layout.model_type == "gpt2");
  std::set<std::string> known;
  for (const HfTensor& tensor : layout.tensors) {
    known.insert(tensor.name);
    const auto found = matrices.find(tensor.name);
    if (found == matrices.end()) continue;
    if (std::vector{found->second.rows, found->second.columns} != tensor.shape)
      throw CheckpointError(model.source.folder() + ": the adapter of '" + tensor.name +
                            "' does not fit that weight in " + model.weights().folder());
  }
  for (const auto& [name, matrix] : matrices)
    if (!known.contains(name))
      throw CheckpointError(model.source.folder() + " has an adapter for '" + printable(name) +
                            "', which is no weight of a " + layout.model_type + " language model");
  return matrices;
}

// The name of "F32" in transformers, and so on.
std::string torch_dtype(const std::string& dtype) {
  if (dtype == "BF16") return "bfloat16";
  return dtype == "F16" ? "float16" : dtype == "F64" ? "float64" : "float32";
}

// Newer versions of transformers read `dtype`, older ones `torch_dtype`, and cast to it.
void name_dtypes(Json& config, const HfLayout& layout, const std::string& dtype) {
  config["architectures"] = {layout.model_type == "gpt2" ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  config["dtype"] = config["torch_dtype"] = torch_dtype(dtype);
}

}  // namespace

}  // namespace fsdp::detail

namespace fsdp {

ConvertedModel export_hf(const std::string& path, const std::string& folder, const ExportOptions& options) {
  using namespace detail;
  Adapted model(path, options);
  CheckpointReader& weights = model.weights();
  Json config = merged_config(model.source, weights, options.config);
  config = complete_hf_config(std::move(config), model.table, weights.folder());
  const HfLayout layout = exported_layout(config, model.table, weights.folder());
  const auto adapters = adapters_of(model, config, layout);
  std::vector<ExportTensor> tensors;
  for (const HfTensor& tensor : layout.tensors) {
    const auto added = adapters.find(tensor.name);
    tensors.push_back({.name = tensor.name,
                       .saved = &weights.manifest().tensors.at(tensor.source),
                       .added = added == adapters.end() ? nullptr : &added->second});
  }
  name_dtypes(config, layout, exported_dtype(*tensors.front().saved, options));
  ConvertedModel made = export_weights(weights, tensors, {}, {{kHfConfig, config}}, folder, options);
  made.model_type = layout.model_type;
  return made;
}

ConvertedModel export_safetensors(const std::string& path, const std::string& folder,
                                  const ExportOptions& options) {
  using namespace detail;
  CheckpointReader source(posix_files(), path);
  const Manifest& manifest = source.manifest();
  std::vector<ExportTensor> tensors;
  for (const auto& [name, tensor] : manifest.tensors)
    if (manifest.is_of_model(name, tensor))
      tensors.push_back({.name = name, .saved = &tensor, .added = nullptr});
  if (tensors.empty()) throw CheckpointError(source.folder() + " holds no weights");
  return export_weights(source, tensors, manifest.aliases, {}, folder, options);
}

}  // namespace fsdp
