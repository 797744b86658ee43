// GPT-2 as plain torch::nn, with Hugging Face's parameter names, shapes and initial distribution.
#pragma once

#include <torch/nn.h>

#include "causal_lm.h"
#include "key_values.h"
#include "lora.h"

namespace fsdp::models {

struct GPT2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;  // the longest sequence
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  double dropout = 0.0;  // in training, on embeddings, attention and residuals; Hugging Face's default is 0.1
  double layer_norm_epsilon = 1e-5;
  bool tie_word_embeddings = true;
  BlockRunner run_block = {};  // empty: a plain call
  LoraConfig lora = {};        // of c_attn, c_proj, c_fc; unset targets: c_attn and attn.c_proj
};

// x [..., in] -> [..., out]. A Linear whose weight is stored as [in, out].
struct Conv1DImpl : torch::nn::Module, Adaptable {
  Conv1DImpl(int64_t in, int64_t out, double init_std);
  torch::Tensor forward(const torch::Tensor& x);
  void add_adapter(const LoraConfig& config) override;

  torch::Tensor weight, bias;
};
TORCH_MODULE(Conv1D);

struct GPT2AttentionImpl : torch::nn::Module {
  explicit GPT2AttentionImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& x);                                 // [batch, time, dim], causal
  torch::Tensor decode(const torch::Tensor& x, int64_t block, KeyValues& read);  // of the tokens after `read`

  int64_t n_head;
  double dropout;
  Conv1D c_attn{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(GPT2Attention);

struct GPT2MLPImpl : torch::nn::Module {
  explicit GPT2MLPImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& x);  // [batch, time, dim]

  double dropout;
  Conv1D c_fc{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(GPT2MLP);

struct GPT2BlockImpl : torch::nn::Module {
  explicit GPT2BlockImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& x);  // [batch, time, dim]
  torch::Tensor decode(const torch::Tensor& x, int64_t block, KeyValues& read);

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  GPT2Attention attn{nullptr};
  GPT2MLP mlp{nullptr};
};
TORCH_MODULE(GPT2Block);

struct GPT2ModelImpl : torch::nn::Module {
  explicit GPT2ModelImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& ids);  // [batch, time] -> [batch, time, dim]
  torch::Tensor decode(const torch::Tensor& ids, KeyValues& read);

  GPT2Config config;
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(GPT2Model);

struct GPT2LMHeadModelImpl : CausalLMImpl {
  explicit GPT2LMHeadModelImpl(const GPT2Config& config);

  // The logits [batch, time, vocab] of `ids` [batch, time]; with `targets` [batch, time], the next tokens,
  // the loss.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets = {});
  // The logits [batch, vocab] of the token that follows `ids` [batch, time], where `ids` follow the tokens in
  // `read`; they are added to it. Without gradients and dropout.
  torch::Tensor next_logits(const torch::Tensor& ids, KeyValues& read);

  GPT2Model transformer{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace fsdp::models
