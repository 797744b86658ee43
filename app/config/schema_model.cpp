// Keys of the sections `model`, `model_config_<name>` and `lora`.
#include "app/config/schema.h"

namespace fsdp::config {

namespace {

constexpr double kMostHidden = 1 << 20;

std::vector<Key> source_keys() {
  return {
      {.path = "model.config",
       .reader = Reader::both,
       .help = "Name of a model config: model_config_<name>",
       .unset = "the file's only model config"},
      {.path = "model.script", .reader = Reader::both, .help = "Path of a TorchScript file", .unset = "none"},
      {.path = "model.pretrained",
       .reader = Reader::both,
       .help = "Hugging Face folder with config.json and safetensors: the model and its start weights",
       .unset = "none"}};
}

std::vector<Key> size_keys() {
  return {{.path = "model_config.type",
           .choices = {"gpt2", "llama"},
           .required = true,
           .reader = Reader::both,
           .help = "The model family"},
          {.path = "model_config.vocab_size",
           .type = Type::integer,
           .least = 2,
           .most = 1e8,
           .required = true,
           .reader = Reader::both,
           .help = "Tokens of the vocabulary"},
          {.path = "model_config.context_length",
           .type = Type::integer,
           .least = 2,
           .most = 1e7,
           .required = true,
           .reader = Reader::both,
           .help = "Tokens of the longest sequence"},
          {.path = "model_config.hidden_size",
           .type = Type::integer,
           .least = 1,
           .most = kMostHidden,
           .required = true,
           .reader = Reader::both,
           .help = "Width of the embeddings"},
          {.path = "model_config.num_layers",
           .type = Type::integer,
           .least = 1,
           .most = 10000,
           .required = true,
           .help = "Blocks"},
          {.path = "model_config.num_heads",
           .type = Type::integer,
           .least = 1,
           .most = 10000,
           .required = true,
           .reader = Reader::both,
           .help = "Attention heads"}};
}

std::vector<Key> detail_keys() {
  return {{.path = "model_config.num_kv_heads",
           .type = Type::integer,
           .least = 1,
           .most = 10000,
           .reader = Reader::both,
           .help = "Heads of keys and values, for grouped-query attention (llama)",
           .unset = "num_heads"},
          {.path = "model_config.intermediate_size",
           .type = Type::integer,
           .least = 1,
           .most = 8 * kMostHidden,
           .reader = Reader::both,
           .help = "Width of the MLP",
           .unset = "gpt2: 4 x hidden_size; llama: 8/3 x hidden_size, rounded up to 256"},
          {.path = "model_config.dropout",
           .type = Type::number,
           .value = 0.0,
           .least = 0,
           .most = 1,
           .below_most = true,
           .help = "Dropout in training (gpt2)"},
          {.path = "model_config.tie_embeddings",
           .type = Type::flag,
           .reader = Reader::both,
           .help = "One weight for input embeddings and output",
           .unset = "gpt2: true; llama: false"},
          {.path = "model_config.rope_theta",
           .type = Type::number,
           .value = 10000.0,
           .least = 0,
           .most = 1e12,
           .above_least = true,
           .help = "Base of the rotary embeddings (llama)",
           .needs = "model_config.type",
           .needed = {"llama"}},
          {.path = "model_config.norm_eps",
           .type = Type::number,
           .value = 1e-5,
           .least = 0,
           .most = 1,
           .above_least = true,
           .help = "Added to the variance in norms"}};
}

std::vector<Key> lora_keys() {
  return {{.path = "lora.rank",
           .type = Type::integer,
           .value = 0,
           .least = 0,
           .most = 65536,
           .reader = Reader::both,
           .help = "Rank of the adapters; 0: no LoRA, all parameters are trained"},
          {.path = "lora.alpha",
           .type = Type::number,
           .value = 16.0,
           .least = 0,
           .most = 1e6,
           .above_least = true,
           .help = "Adapters are scaled by alpha / rank"},
          {.path = "lora.targets",
           .type = Type::list,
           .help = "Names of the linear layers that get adapters, such as q_proj",
           .unset = "the attention's projections"}};
}

}  // namespace

std::vector<Key> model_keys() {
  std::vector<Key> keys = source_keys();
  for (auto part : {size_keys, detail_keys, lora_keys})
    for (Key& key : part()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace fsdp::config
