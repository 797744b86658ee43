#include "files/hf_config.h"

#include <algorithm>
#include <vector>

#include "files/hf_layout.h"

namespace fsdp::detail {

namespace {

constexpr int64_t kMostExtent = int64_t{1} << 32;

// True if `config` has a value for `key` that is not null.
bool has_value(const Json& config, const std::string& key) {
  return config.contains(key) && !config.at(key).is_null();
}

int64_t needed(const JsonObject& config, const std::string& key) {
  if (!has_value(config.json(), key)) config.fail("no '" + key + "'; give it in the config");
  return config.integer(key, 1, kMostExtent);
}

void need_positive(const JsonObject& config, const std::string& key) {
  if (!has_value(config.json(), key)) config.fail("no '" + key + "'; give it in the config");
  if (!(config.number(key) > 0)) config.fail("'" + key + "' is not positive");
}

// Requires that a value which changes the computation is null, or one that models/ supports.
void need_one_of(const JsonObject& config, const std::string& key, const std::vector<Json>& values) {
  if (!has_value(config.json(), key)) return;
  const Json& value = config.at(key);
  if (std::find(values.begin(), values.end(), value) != values.end()) return;
  config.fail("'" + key + "' is " + value.dump().substr(0, 60) + "; this library's model computes " +
              values.front().dump() + " only");
}

void refuse_value(const JsonObject& config, const std::string& key) {
  if (has_value(config.json(), key))
    config.fail("it has a '" + key + "', which this library's models have not");
}

void check_heads(const JsonObject& config, int64_t dim, int64_t heads, int64_t kv_heads, int64_t unit) {
  if (dim % (unit * heads) != 0 || heads % kv_heads != 0)
    config.fail(std::to_string(heads) + " heads and " + std::to_string(kv_heads) +
                " key/value heads do not divide a width of " + std::to_string(dim));
}

HfSizes read_gpt2(const JsonObject& config) {
  need_one_of(config, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  need_one_of(config, "scale_attn_weights", {true});
  need_one_of(config, "scale_attn_by_inverse_layer_idx", {false});
  need_one_of(config, "add_cross_attention", {false});
  need_positive(config, "layer_norm_epsilon");
  const int64_t dim = needed(config, "n_embd"), heads = needed(config, "n_head");
  need_one_of(config, "n_inner", {4 * dim});
  check_heads(config, dim, heads, heads, 1);
  return {.model_type = "gpt2",
          .vocabulary = needed(config, "vocab_size"),
          .positions = needed(config, "n_positions"),
          .dim = dim,
          .inner = 4 * dim,
          .layers = needed(config, "n_layer"),
          .heads = heads,
          .kv_heads = heads,
          .tied = config.flag("tie_word_embeddings")};
}

void check_rope(const JsonObject& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!has_value(config.json(), key)) continue;
    const JsonObject rope = config.object(key);
    for (const char* type : {"rope_type", "type"}) need_one_of(rope, type, {"default"});
    need_one_of(rope, "partial_rotary_factor", {1.0});
  }
  need_positive(config, "rope_theta");
}

HfSizes read_llama(const JsonObject& config) {
  need_one_of(config, "hidden_act", {"silu", "swish"});
  need_one_of(config, "attention_bias", {false});
  need_one_of(config, "mlp_bias", {false});
  need_one_of(config, "pretraining_tp", {1});
  check_rope(config);
  need_positive(config, "rms_norm_eps");
  const int64_t dim = needed(config, "hidden_size"), heads = needed(config, "num_attention_heads");
  const int64_t kv_heads = needed(config, "num_key_value_heads");
  check_heads(config, dim, heads, kv_heads, 2);
  need_one_of(config, "head_dim", {dim / heads});
  return {.model_type = "llama",
          .vocabulary = needed(config, "vocab_size"),
          .positions = needed(config, "max_position_embeddings"),
          .dim = dim,
          .inner = needed(config, "intermediate_size"),
          .layers = needed(config, "num_hidden_layers"),
          .heads = heads,
          .kv_heads = kv_heads,
          .tied = config.flag("tie_word_embeddings")};
}

// Sets values that shapes show.
class FromShapes {
 public:
  FromShapes(Json& config, const TensorTable& found) : config_(config), found_(found) {}

  // Sets the extent of a dimension, if the config has no value and the tensor exists.
  void extent(const char* key, const std::string& name, size_t dimension) {
    if (has_value(config_, key)) return;
    if (const TensorKind* kind = find(name); kind != nullptr && kind->shape.size() > dimension)
      config_[key] = kind->shape[dimension];
  }

  // Rows and columns of the embedding, or of the head: a tied weight may be stored under its name only.
  void embedding(const char* rows, const char* columns, const char* name) {
    const std::string there = find(name) != nullptr ? name : kHfHead;
    extent(rows, there, 0);
    extent(columns, there, 1);
  }

  // Sets the number of layers, from `before`0`after`, `before`1`after`, ...
  void layers(const char* key, const std::string& before, const std::string& after) {
    if (has_value(config_, key)) return;
    int64_t count = 0;
    const auto name = [&] { return std::string(before).append(std::to_string(count)).append(after); };
    while (find(name()) != nullptr) ++count;
    config_[key] = count;
  }

  // Finds a tensor with or without the prefix of a base model.
  const TensorKind* find(const std::string& name) const {
    auto at = found_.find(name);
    if (at == found_.end()) at = found_.find(name.substr(name.find('.') + 1));
    return at == found_.end() ? nullptr : &at->second;
  }

 private:
  Json& config_;
  const TensorTable& found_;
};

void complete_rope(Json& config, const std::string& where) {
  constexpr double kTheta = 10000.0;  // default of transformers for configs older than the value
  const bool nested = has_value(config, "rope_parameters") && config["rope_parameters"].is_object() &&
                      has_value(config["rope_parameters"], "rope_theta");
  const Json theta = nested ? config["rope_parameters"]["rope_theta"] : Json(kTheta);
  if (nested && has_value(config, "rope_theta") && config["rope_theta"] != theta)
    JsonObject(config, where).fail("'rope_theta' is there twice, with two values");
  if (!has_value(config, "rope_theta")) config["rope_theta"] = theta;
  if (!has_value(config, "rope_parameters") && !has_value(config, "rope_scaling"))
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", config["rope_theta"]}};
}

void complete_llama(Json& config, const TensorTable& found, const std::string& where) {
  FromShapes shapes(config, found);
  shapes.embedding("vocab_size", "hidden_size", kLlamaEmbedding);
  shapes.extent("intermediate_size", "model.layers.0.mlp.gate_proj.weight", 0);
  shapes.layers("num_hidden_layers", "model.layers.", ".mlp.gate_proj.weight");
  complete_rope(config, where);
  const JsonObject object(config, where);
  const TensorKind* keys = shapes.find("model.layers.0.self_attn.k_proj.weight");
  if (has_value(config, "num_key_value_heads") || keys == nullptr || keys->shape.empty()) return;
  const int64_t heads = needed(object, "num_attention_heads"), dim = needed(object, "hidden_size");
  if (dim % heads == 0) config["num_key_value_heads"] = keys->shape.front() / (dim / heads);
}

void complete_gpt2(Json& config, const TensorTable& found) {
  FromShapes shapes(config, found);
  shapes.embedding("vocab_size", "n_embd", kGpt2Embedding);
  shapes.extent("n_positions", "transformer.wpe.weight", 0);
  shapes.layers("n_layer", "transformer.h.", ".ln_1.weight");
}

}  // namespace

std::string hf_model_type(const Json& config, const std::string& where) {
  const JsonObject object(config, where);
  if (!has_value(config, "model_type"))
    object.fail("no 'model_type'; give \"gpt2\" or \"llama\" in the config");
  const std::string type = object.text("model_type");
  if (type != "gpt2" && type != "llama")
    object.fail("a model of the type '" + type.substr(0, 60) + "'; this library has gpt2 and llama");
  refuse_value(object, "quantization_config");
  return type;
}

Json complete_hf_config(Json config, const TensorTable& found, const std::string& where) {
  const bool gpt2 = hf_model_type(config, where) == "gpt2";
  if (gpt2)
    complete_gpt2(config, found);
  else
    complete_llama(config, found, where);
  const char* embedding = gpt2 ? kGpt2Embedding : kLlamaEmbedding;
  const bool both = found.contains(kHfHead) && FromShapes(config, found).find(embedding) != nullptr;
  if (!has_value(config, "tie_word_embeddings")) config["tie_word_embeddings"] = !both;
  return config;
}

Json read_hf_defaults(Json config, const TensorTable& found, const std::string& where) {
  if (hf_model_type(config, where) == "gpt2") config.emplace("tie_word_embeddings", true);
  return complete_hf_config(std::move(config), found, where);
}

HfSizes read_hf_config(const Json& config, int64_t most_layers, const std::string& where) {
  const JsonObject object(config, where);
  const HfSizes size = hf_model_type(config, where) == "gpt2" ? read_gpt2(object) : read_llama(object);
  if (size.layers > most_layers)
    object.fail(std::to_string(size.layers) + " layers, but there are " + std::to_string(most_layers) +
                " tensors only");
  return size;
}

}  // namespace fsdp::detail
