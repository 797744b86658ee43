// The model that a run trains, as its configuration describes it. Nothing is made here.
#pragma once

#include <cstdint>
#include <string>

#include "models/gpt2.h"
#include "models/llama.h"

namespace fsdp::train {

struct ModelSpec {
  std::string name = {};        // "gpt2_124M"
  std::string type = "llama";   // "gpt2", "llama"; "script" for a TorchScript file
  std::string script = {};      // its path
  std::string pretrained = {};  // a Hugging Face folder with start weights; empty: none
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;       // 0: num_heads
  int64_t intermediate_size = 0;  // 0: the type's own choice
  double dropout = 0;
  bool tie_embeddings = true;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  models::LoraConfig lora = {};
};

models::GPT2Config gpt2_config(const ModelSpec& spec);
models::LlamaConfig llama_config(const ModelSpec& spec);

// config.json as Hugging Face writes it, for exports, with `lora` if there are adapters; empty for a script.
std::string hugging_face_config(const ModelSpec& spec);
// The spec of a Hugging Face folder's config.json. Throws CheckpointError if it is no GPT-2 or Llama.
ModelSpec read_hugging_face_spec(const std::string& folder);

// Floating-point operations per token of forward and backward, without recomputation: 6 per weight that is
// multiplied, 4 if base weights are frozen under adapters, and attention.
double flops_per_token(const ModelSpec& spec, int64_t parameters, int64_t sequence_length);

}  // namespace fsdp::train
