#include "files/hf_layout.h"

#include <fsdp/error.h>
#include <gtest/gtest.h>

namespace fsdp::detail {
namespace {

Json llama_config() {
  return {{"model_type", "llama"},
          {"num_attention_heads", 4},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 2048}};
}

TensorTable llama_table(bool tied) {
  TensorTable table;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    table[name] = {.dtype = "F32", .shape = std::move(shape)};
  };
  add("model.embed_tokens.weight", {61, 32});
  for (const char* name : {"q_proj", "o_proj"})
    add(std::string("model.layers.0.self_attn.") + name + ".weight", {32, 32});
  for (const char* name : {"k_proj", "v_proj"})
    add(std::string("model.layers.0.self_attn.") + name + ".weight", {16, 32});
  for (const char* name : {"gate_proj", "up_proj"})
    add(std::string("model.layers.0.mlp.") + name + ".weight", {48, 32});
  add("model.layers.0.mlp.down_proj.weight", {32, 48});
  add("model.layers.0.input_layernorm.weight", {32});
  add("model.layers.0.post_attention_layernorm.weight", {32});
  add("model.norm.weight", {32});
  if (!tied) add("lm_head.weight", {61, 32});
  return table;
}

TEST(HfLayout, ShapesCompleteAConfig) {
  const Json config = complete_hf_config(llama_config(), llama_table(false), "here");
  EXPECT_EQ(config["vocab_size"], 61);
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_EQ(config["intermediate_size"], 48);
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["rope_parameters"]["rope_theta"], 10000.0);
}

TEST(HfLayout, EveryTensorOnceAndInOrder) {
  for (const bool tied : {false, true}) {
    const TensorTable table = llama_table(tied);
    const HfLayout layout = hf_layout(complete_hf_config(llama_config(), table, "here"), table, "here");
    EXPECT_EQ(layout.model_type, "llama");
    EXPECT_EQ(layout.tensors.size(), table.size());
    EXPECT_EQ(layout.tensors.front().name, kLlamaEmbedding);
    for (const HfTensor& tensor : layout.tensors) {
      EXPECT_EQ(tensor.name, tensor.source);
      EXPECT_EQ(tensor.shape, table.at(tensor.source).shape);
    }
    EXPECT_EQ(layout.aliases.contains(kHfHead), tied);
    EXPECT_TRUE(layout.others.empty());
  }
}

TEST(HfLayout, BaseModelsHaveNoPrefix) {
  TensorTable bare;
  for (const auto& [name, kind] : llama_table(true)) bare[name.substr(6)] = kind;
  bare["layers.0.self_attn.rotary_emb.inv_freq"] = {.dtype = "F32", .shape = {4}};
  bare["more"] = {.dtype = "F32", .shape = {}};
  const HfLayout layout = hf_layout(complete_hf_config(llama_config(), bare, "here"), bare, "here");
  EXPECT_EQ(layout.tensors.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(layout.tensors.front().source, "embed_tokens.weight");
  EXPECT_EQ(layout.others, std::vector<std::string>{"more"});
}

TEST(HfLayout, ATiedWeightMayBeThereAsTheHead) {
  TensorTable table = llama_table(false);
  table.erase(kLlamaEmbedding);
  const Json config = complete_hf_config(llama_config(), table, "here");
  EXPECT_EQ(config["tie_word_embeddings"], true);
  const HfLayout layout = hf_layout(config, table, "here");
  EXPECT_EQ(layout.tensors.front().name, kLlamaEmbedding);
  EXPECT_EQ(layout.tensors.front().source, kHfHead);
}

TEST(HfLayout, WhatShapesDoNotSayIsNeeded) {
  for (const char* key : {"model_type", "num_attention_heads", "rms_norm_eps", "max_position_embeddings"}) {
    Json config = llama_config();
    config.erase(key);
    const TensorTable table = llama_table(false);
    try {
      hf_layout(complete_hf_config(config, table, "here"), table, "here");
      ADD_FAILURE() << key << " was not missed";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("here: no '") + key + "'"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace fsdp::detail
