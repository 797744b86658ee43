#include "trainer/model_spec.h"

#include <fsdp/error.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdp::train {

namespace {

using Json = nlohmann::ordered_json;

Json gpt2_json(const models::GPT2Config& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"layer_norm_epsilon", config.layer_norm_epsilon},
          {"embd_pdrop", config.dropout},
          {"attn_pdrop", config.dropout},
          {"resid_pdrop", config.dropout},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

Json llama_json(const models::LlamaConfig& config, int64_t intermediate_size) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"initializer_range", config.initializer_range},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

ModelSpec gpt2_spec(const Json& config) {
  return {.type = "gpt2",
          .vocab_size = config.at("vocab_size"),
          .context_length = config.at("n_positions"),
          .hidden_size = config.at("n_embd"),
          .num_layers = config.at("n_layer"),
          .num_heads = config.at("n_head"),
          .dropout = config.value("resid_pdrop", 0.1),
          .tie_embeddings = config.value("tie_word_embeddings", true),
          .norm_eps = config.value("layer_norm_epsilon", 1e-5)};
}

ModelSpec llama_spec(const Json& config) {
  const int64_t heads = config.at("num_attention_heads");
  return {.type = "llama",
          .vocab_size = config.at("vocab_size"),
          .context_length = config.value("max_position_embeddings", int64_t{2048}),
          .hidden_size = config.at("hidden_size"),
          .num_layers = config.at("num_hidden_layers"),
          .num_heads = heads,
          .num_kv_heads = config.value("num_key_value_heads", heads),
          .intermediate_size = config.at("intermediate_size"),
          .tie_embeddings = config.value("tie_word_embeddings", false),
          .rope_theta = config.value("rope_theta", 10000.0),
          .norm_eps = config.value("rms_norm_eps", 1e-6)};
}

// As LlamaConfig says for 0.
int64_t llama_intermediate(const ModelSpec& spec) {
  if (spec.intermediate_size > 0) return spec.intermediate_size;
  return (spec.hidden_size * 8 / 3 + 255) / 256 * 256;
}

}  // namespace

models::GPT2Config gpt2_config(const ModelSpec& spec) {
  return {.vocab_size = spec.vocab_size,
          .n_positions = spec.context_length,
          .n_embd = spec.hidden_size,
          .n_layer = spec.num_layers,
          .n_head = spec.num_heads,
          .dropout = spec.dropout,
          .layer_norm_epsilon = spec.norm_eps,
          .tie_word_embeddings = spec.tie_embeddings,
          .lora = spec.lora};
}

models::LlamaConfig llama_config(const ModelSpec& spec) {
  return {.vocab_size = spec.vocab_size,
          .hidden_size = spec.hidden_size,
          .intermediate_size = llama_intermediate(spec),
          .num_hidden_layers = spec.num_layers,
          .num_attention_heads = spec.num_heads,
          .num_key_value_heads = spec.num_kv_heads > 0 ? spec.num_kv_heads : spec.num_heads,
          .max_position_embeddings = spec.context_length,
          .rms_norm_eps = spec.norm_eps,
          .rope_theta = spec.rope_theta,
          .tie_word_embeddings = spec.tie_embeddings,
          .lora = spec.lora};
}

std::string hugging_face_config(const ModelSpec& spec) {
  Json config;
  if (spec.type == "gpt2") config = gpt2_json(gpt2_config(spec));
  if (spec.type == "llama") config = llama_json(llama_config(spec), llama_intermediate(spec));
  if (config.is_null()) return "";
  const models::LoraConfig& lora = spec.lora;
  if (lora.rank > 0) config["lora"] = {{"rank", lora.rank}, {"alpha", lora.alpha}, {"targets", lora.targets}};
  return config.dump();
}

ModelSpec read_hugging_face_spec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path);
  if (!file) throw IoError("read", path, errno, "a Hugging Face folder has this file");
  try {
    const Json config = Json::parse(file);
    const std::string type = config.value("model_type", "");
    if (type != "gpt2" && type != "llama")
      throw CheckpointError(path + ": model_type is '" + type + "'; this trainer knows gpt2 and llama");
    ModelSpec spec = type == "gpt2" ? gpt2_spec(config) : llama_spec(config);
    spec.pretrained = folder;
    return spec;
  } catch (const Json::exception& error) {
    throw CheckpointError(path + ": " + error.what());
  }
}

double flops_per_token(const ModelSpec& spec, int64_t parameters, int64_t sequence_length) {
  const int64_t embedding = spec.vocab_size * spec.hidden_size;
  const int64_t positions = spec.type == "gpt2" ? spec.context_length * spec.hidden_size : 0;
  // A tied embedding is looked up and multiplied; one of its own is only looked up.
  const int64_t multiplied = parameters - positions - (spec.tie_embeddings ? 0 : embedding);
  const int64_t attention = spec.num_layers * spec.hidden_size * sequence_length;  // causal: half of 12 l d t
  // A frozen weight has no gradient of its own; the gradient of its input is still computed.
  const double per_weight = spec.lora.rank > 0 ? 4.0 : 6.0;
  return per_weight * static_cast<double>(multiplied) + 6.0 * static_cast<double>(attention);
}

}  // namespace fsdp::train
