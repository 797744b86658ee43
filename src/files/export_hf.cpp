#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include "files/checkpoint_reader.h"
#include "files/hf_folder.h"
#include "files/model_config.h"
#include "files/weight_export.h"

namespace fsdp::detail {

namespace {

// The given values override those of the checkpoint.
Json merged_config(const CheckpointReader& source, const std::string& given) {
  const Json& run = source.manifest().run;
  Json config = Json::object();
  if (run.contains(kModelConfigKey)) config = run.at(kModelConfigKey);
  const std::string where = source.folder() + ", run value '" + kModelConfigKey + "'";
  if (!config.is_object()) throw CheckpointError(where + " is not an object");
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
  CheckpointReader source(posix_files(), path);
  const TensorTable table = table_of(source.manifest());
  Json config = complete_hf_config(merged_config(source, options.config), table, source.folder());
  const HfLayout layout = exported_layout(config, table, source.folder());
  std::vector<ExportTensor> tensors;
  for (const HfTensor& tensor : layout.tensors)
    tensors.push_back({.name = tensor.name, .saved = &source.manifest().tensors.at(tensor.source)});
  name_dtypes(config, layout, exported_dtype(*tensors.front().saved, options));
  ConvertedModel made = export_weights(source, tensors, {}, {{kHfConfig, config}}, folder, options);
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
    if (manifest.is_of_model(name, tensor)) tensors.push_back({.name = name, .saved = &tensor});
  if (tensors.empty()) throw CheckpointError(source.folder() + " holds no weights");
  return export_weights(source, tensors, manifest.aliases, {}, folder, options);
}

}  // namespace fsdp
