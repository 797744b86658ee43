// Small models with and without adapters, for the tests of this folder.
#pragma once

#include <string>

#include "trainer/model_spec.h"

namespace fsdp::testing {

constexpr int64_t kVocab = 40, kContext = 8;

inline train::ModelSpec spec_of(const std::string& type, const models::LoraConfig& lora) {
  return {.type = type,
          .vocab_size = kVocab,
          .context_length = kContext,
          .hidden_size = 16,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = type == "llama" ? 2 : 0,
          .intermediate_size = type == "llama" ? 24 : 0,
          .tie_embeddings = type == "gpt2",
          .lora = lora};
}

}  // namespace fsdp::testing
