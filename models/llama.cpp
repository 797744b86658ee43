#include "models/llama.h"

#include <optional>

#include "models/fused.h"

namespace fsdp::models {
namespace {

LoraLinear linear(int64_t in, int64_t out) {
  return LoraLinear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

LlamaRMSNormImpl::LlamaRMSNormImpl(const LlamaConfig& config)
    : eps(config.rms_norm_eps), weight(register_parameter("weight", torch::ones({config.hidden_size}))) {}

torch::Tensor LlamaRMSNormImpl::forward(const torch::Tensor& x) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : heads(config.num_attention_heads),
      kv_heads(config.num_key_value_heads > 0 ? config.num_key_value_heads : heads),
      head_dim(config.hidden_size / heads) {
  TORCH_CHECK(config.hidden_size % (2 * heads) == 0, "hidden_size (", config.hidden_size,
              ") must be an even multiple of num_attention_heads (", heads, ")");
  TORCH_CHECK(heads % kv_heads == 0, "num_attention_heads (", heads,
              ") must be a multiple of num_key_value_heads (", kv_heads, ")");
  q_proj = register_module("q_proj", linear(config.hidden_size, heads * head_dim));
  k_proj = register_module("k_proj", linear(config.hidden_size, kv_heads * head_dim));
  v_proj = register_module("v_proj", linear(config.hidden_size, kv_heads * head_dim));
  o_proj = register_module("o_proj", linear(heads * head_dim, config.hidden_size));
}

torch::Tensor LlamaAttentionImpl::forward(const torch::Tensor& x, const RotaryTables& rotary) {
  const int64_t batch = x.size(0), time = x.size(1);
  auto split = [&](const torch::Tensor& t,
                   int64_t n) {  // [batch, time, n * head_dim] -> [batch, n, time, head_dim]
    return t.view({batch, time, n, head_dim}).transpose(1, 2);
  };
  const auto q = apply_rotary(split(q_proj(x), heads), rotary);
  const auto k = apply_rotary(split(k_proj(x), kv_heads), rotary);
  const auto v = split(v_proj(x), kv_heads);
  const auto y = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
                                                  /*is_causal=*/true,
                                                  /*scale=*/std::nullopt, /*enable_gqa=*/kv_heads != heads);
  return o_proj(y.transpose(1, 2).reshape({batch, time, -1}));
}

torch::Tensor LlamaAttentionImpl::decode(const torch::Tensor& x, const RotaryTables& rotary, int64_t block,
                                         KeyValues& read) {
  const int64_t batch = x.size(0), time = x.size(1);
  auto split = [&](const torch::Tensor& t,
                   int64_t n) {  // [batch, time, n * head_dim] -> [batch, n, time, head_dim]
    return t.view({batch, time, n, head_dim}).transpose(1, 2);
  };
  const auto q = apply_rotary(split(q_proj(x), heads), rotary);
  const auto k = apply_rotary(split(k_proj(x), kv_heads), rotary);
  const auto y = read.attend(block, q, k, split(v_proj(x), kv_heads));
  return o_proj(y.transpose(1, 2).reshape({batch, time, -1}));
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config) {
  const int64_t dim = config.hidden_size;
  const int64_t inner =
      config.intermediate_size > 0 ? config.intermediate_size : (8 * dim / 3 + 255) / 256 * 256;
  gate_proj = register_module("gate_proj", linear(dim, inner));
  up_proj = register_module("up_proj", linear(dim, inner));
  down_proj = register_module("down_proj", linear(inner, dim));
}

torch::Tensor LlamaMLPImpl::forward(const torch::Tensor& x) {
  return down_proj(gated_silu(gate_proj(x), up_proj(x)));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config) {
  self_attn = register_module("self_attn", LlamaAttention(config));
  mlp = register_module("mlp", LlamaMLP(config));
  input_layernorm = register_module("input_layernorm", LlamaRMSNorm(config));
  post_attention_layernorm = register_module("post_attention_layernorm", LlamaRMSNorm(config));
}

torch::Tensor LlamaDecoderLayerImpl::forward(const torch::Tensor& x, const RotaryTables& rotary) {
  const auto y = x + self_attn(input_layernorm(x), rotary);
  return y + mlp(post_attention_layernorm(y));
}

torch::Tensor LlamaDecoderLayerImpl::decode(const torch::Tensor& x, const RotaryTables& rotary, int64_t block,
                                            KeyValues& read) {
  const auto y = x + self_attn->decode(input_layernorm(x), rotary, block, read);
  return y + mlp(post_attention_layernorm(y));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : config(config), rotary(config.hidden_size / config.num_attention_heads, config.rope_theta) {
  embed_tokens = register_module("embed_tokens", torch::nn::Embedding(config.vocab_size, config.hidden_size));
  register_module("layers", layers);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers->push_back(LlamaDecoderLayer(config));
  norm = register_module("norm", LlamaRMSNorm(config));
}

torch::Tensor LlamaModelImpl::forward(const torch::Tensor& ids) {
  const int64_t time = ids.size(-1);
  TORCH_CHECK(time <= config.max_position_embeddings, "a sequence of ", time,
              " tokens, but max_position_embeddings is ", config.max_position_embeddings);
  auto x = embed_tokens(ids);
  const auto angles = rotary.tables(time, x);
  int64_t number = 0;
  for (const auto& layer : *layers) {
    const auto forward = [layer, angles](const torch::Tensor& in) {
      return layer->as<LlamaDecoderLayer>()->forward(in, angles);
    };
    x = config.run_block ? config.run_block(number++, forward, x) : forward(x);
  }
  return norm(x);
}

torch::Tensor LlamaModelImpl::decode(const torch::Tensor& ids, KeyValues& read) {
  const int64_t begin = read.length(), time = ids.size(-1);
  TORCH_CHECK(begin + time <= config.max_position_embeddings, "a text of ", begin + time,
              " tokens, but max_position_embeddings is ", config.max_position_embeddings);
  auto x = embed_tokens(ids);
  // Tables of one size for the whole text: a longer one would be computed anew at each token.
  const auto all = rotary.tables(read.capacity(), x);
  const RotaryTables angles{all.cos.narrow(0, begin, time), all.sin.narrow(0, begin, time)};
  int64_t number = 0;
  for (const auto& layer : *layers) x = layer->as<LlamaDecoderLayer>()->decode(x, angles, number++, read);
  return norm(x);
}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config) {
  model = register_module("model", LlamaModel(config));
  make_lm_head(model->embed_tokens->weight, config.tie_word_embeddings);
  for (auto& parameter : parameters()) {
    if (parameter.dim() == 2) torch::nn::init::normal_(parameter, 0.0, config.initializer_range);
  }
  add_adapters(*this, config.lora, {"q_proj", "k_proj", "v_proj", "o_proj"});
}

torch::Tensor LlamaForCausalLMImpl::forward(const torch::Tensor& ids, const torch::Tensor& targets) {
  return logits_or_loss(model(ids), targets);
}

torch::Tensor LlamaForCausalLMImpl::next_logits(const torch::Tensor& ids, KeyValues& read) {
  read.check(ids.size(-1));
  const auto logits = lm_head(model->decode(ids, read).select(1, -1));
  read.advance(ids.size(-1));
  return logits;
}

}  // namespace fsdp::models
