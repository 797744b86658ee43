// Llama as plain torch::nn, with Hugging Face's parameter names and shapes: RMSNorm, RoPE, grouped-query
// attention and SwiGLU; no biases.
#pragma once

#include <torch/nn.h>

#include "causal_lm.h"
#include "key_values.h"
#include "lora.h"
#include "rotary.h"

namespace fsdp::models {

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 0;  // 0: 8/3 of hidden_size, rounded up to a multiple of 256
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 0;         // 0: as many as num_attention_heads
  int64_t max_position_embeddings = 2048;  // the longest sequence
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  BlockRunner run_block = {};  // empty: a plain call
  LoraConfig lora = {};        // of the *_proj layers; unset targets: q_proj, k_proj, v_proj, o_proj
};

struct LlamaRMSNormImpl : torch::nn::Module {
  explicit LlamaRMSNormImpl(const LlamaConfig& config);
  torch::Tensor forward(const torch::Tensor& x);  // [..., dim]

  double eps;
  torch::Tensor weight;
};
TORCH_MODULE(LlamaRMSNorm);

struct LlamaAttentionImpl : torch::nn::Module {
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const RotaryTables& rotary);  // [batch, time, dim], causal
  torch::Tensor decode(const torch::Tensor& x, const RotaryTables& rotary, int64_t block,
                       KeyValues& read);  // of the tokens after `read`

  int64_t heads, kv_heads, head_dim;
  LoraLinear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
};
TORCH_MODULE(LlamaAttention);

struct LlamaMLPImpl : torch::nn::Module {
  explicit LlamaMLPImpl(const LlamaConfig& config);
  torch::Tensor forward(const torch::Tensor& x);  // [batch, time, dim]

  LoraLinear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaMLP);

struct LlamaDecoderLayerImpl : torch::nn::Module {
  explicit LlamaDecoderLayerImpl(const LlamaConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const RotaryTables& rotary);  // [batch, time, dim]
  torch::Tensor decode(const torch::Tensor& x, const RotaryTables& rotary, int64_t block, KeyValues& read);

  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};
  LlamaRMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

struct LlamaModelImpl : torch::nn::Module {
  explicit LlamaModelImpl(const LlamaConfig& config);
  torch::Tensor forward(const torch::Tensor& ids);  // [batch, time] -> [batch, time, dim]
  torch::Tensor decode(const torch::Tensor& ids, KeyValues& read);

  LlamaConfig config;
  RotaryEmbedding rotary;
  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers;
  LlamaRMSNorm norm{nullptr};
};
TORCH_MODULE(LlamaModel);

struct LlamaForCausalLMImpl : CausalLMImpl {
  explicit LlamaForCausalLMImpl(const LlamaConfig& config);

  // The logits [batch, time, vocab] of `ids` [batch, time]; with `targets` [batch, time], the next tokens,
  // the loss.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets = {});
  // The logits [batch, vocab] of the token that follows `ids` [batch, time], where `ids` follow the tokens in
  // `read`; they are added to it. Without gradients.
  torch::Tensor next_logits(const torch::Tensor& ids, KeyValues& read);

  LlamaModel model{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(LlamaForCausalLM);

}  // namespace fsdp::models
