#include "files/hf_agreement.h"

#include <fsdp/error.h>

#include <algorithm>
#include <array>

#include "files/hf_config.h"
#include "files/hf_layout.h"
#include "files/model_config.h"

namespace fsdp::detail {

namespace {

// Keys of a config that change the computation, and that shapes do not show.
constexpr std::array<const char*, 18> kDecisive{"model_type",
                                                "n_head",
                                                "layer_norm_epsilon",
                                                "activation_function",
                                                "scale_attn_weights",
                                                "scale_attn_by_inverse_layer_idx",
                                                "num_attention_heads",
                                                "num_key_value_heads",
                                                "head_dim",
                                                "rms_norm_eps",
                                                "hidden_act",
                                                "rope_theta",
                                                "rope_scaling",
                                                "rope_type",
                                                "partial_rotary_factor",
                                                "attention_bias",
                                                "mlp_bias",
                                                "sliding_window"};

// Replaces synonyms by one name, and puts rotary frequencies where older configs have them.
Json plain_config(Json config) {
  if (!config.is_object()) return Json::object();
  if (const auto rope = config.find("rope_parameters"); rope != config.end() && rope->is_object())
    config.insert(rope->begin(), rope->end());  // existing values stay
  for (const auto& [key, from, to] : {std::array{"activation_function", "gelu_pytorch_tanh", "gelu_new"},
                                      std::array{"hidden_act", "swish", "silu"}})
    if (config.contains(key) && config.at(key) == from) config[key] = to;
  return config;
}

void need_same(const Json& config, const Json& said, const std::string& where) {
  for (const char* key : kDecisive) {
    const auto there = config.find(key), ours = said.find(key);
    const bool both = there != config.end() && ours != said.end() && !there->is_null() && !ours->is_null();
    if (both && *there != *ours)
      throw CheckpointError(where + ": '" + key + "' is " + printable(there->dump()) +
                            " in its config.json, and " + printable(ours->dump()) +
                            " in RunState::model_config. The weights would load, and mean something else. "
                            "Make the model by the values of config.json");
  }
}

// "gpt2" or "llama", if a module has the names of models/; "" for others.
std::string family_of(const std::vector<std::string>& names) {
  struct Names {
    const char *family, *prefix, *attention;
  };
  for (const Names& one : {Names{"gpt2", "transformer.", "transformer.h.0.attn.c_attn.weight"},
                           Names{"llama", "model.", "model.layers.0.self_attn.q_proj.weight"}}) {
    const bool ours = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == kHfHead || name.starts_with(one.prefix);
    });
    if (ours && std::find(names.begin(), names.end(), one.attention) != names.end()) return one.family;
  }
  return "";
}

void check_as_import(const Manifest& manifest, const Json& config, bool whole, const std::string& where) {
  TensorTable table;
  for (const auto& [name, tensor] : manifest.tensors)
    table[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  try {
    const Json complete = read_hf_defaults(config, table, where);
    if (whole)
      hf_layout(complete, table, where);
    else
      read_hf_config(complete, static_cast<int64_t>(table.size()), where);
  } catch (const CheckpointError& error) {
    throw CheckpointError(std::string(error.what()) +
                          ". The model has the names of models/, which computes something else. For a module "
                          "that computes what config.json says, give a folder with the safetensors alone");
  }
}

}  // namespace

void check_hf_config(const Manifest& manifest, const std::vector<std::string>& module_names,
                     const std::string& said, bool whole, const std::string& where) {
  if (!manifest.foreign || !manifest.run.contains(kModelConfigKey)) return;
  const Json& config = manifest.run.at(kModelConfigKey);
  if (!said.empty())
    need_same(plain_config(config), plain_config(parse_json(said, "RunState::model_config")), where);
  if (!family_of(module_names).empty()) check_as_import(manifest, config, whole, where);
}

}  // namespace fsdp::detail
