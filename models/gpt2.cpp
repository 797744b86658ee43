#include "models/gpt2.h"

#include <cmath>
#include <optional>

namespace fsdp::models {
namespace {

constexpr double kInitStd = 0.02;

// Layers that write to the residual stream start smaller, so that its variance does not grow with depth.
double residual_init_std(const GPT2Config& config) {
  return kInitStd / std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

torch::nn::LayerNorm layer_norm(const GPT2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

torch::nn::Embedding embedding(int64_t rows, const GPT2Config& config) {
  torch::nn::Embedding made(rows, config.n_embd);
  torch::nn::init::normal_(made->weight, 0.0, kInitStd);
  return made;
}

}  // namespace

Conv1DImpl::Conv1DImpl(int64_t in, int64_t out, double init_std)
    : weight(register_parameter("weight", torch::empty({in, out}))),
      bias(register_parameter("bias", torch::zeros({out}))) {
  torch::nn::init::normal_(weight, 0.0, init_std);
}

torch::Tensor Conv1DImpl::forward(const torch::Tensor& x) {
  auto shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return adapter.add_to(at::addmm(bias, x.reshape({-1, weight.size(0)}), weight).view(shape), x);
}

void Conv1DImpl::add_adapter(const LoraConfig& config) {
  adapter.add(*this, weight.size(0), weight.size(1), config);
}

GPT2AttentionImpl::GPT2AttentionImpl(const GPT2Config& config)
    : n_head(config.n_head), dropout(config.dropout) {
  TORCH_CHECK(config.n_embd % n_head == 0, "n_embd (", config.n_embd, ") must be a multiple of n_head (",
              n_head, ")");
  c_attn = register_module("c_attn", Conv1D(config.n_embd, 3 * config.n_embd, kInitStd));
  c_proj = register_module("c_proj", Conv1D(config.n_embd, config.n_embd, residual_init_std(config)));
}

torch::Tensor GPT2AttentionImpl::forward(const torch::Tensor& x) {
  const int64_t batch = x.size(0), time = x.size(1), dim = x.size(2);
  auto heads = [&](const torch::Tensor& t) {  // [batch, time, dim] -> [batch, head, time, dim / head]
    return t.view({batch, time, n_head, dim / n_head}).transpose(1, 2);
  };
  const auto qkv = c_attn(x).split(dim, -1);
  auto y = at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]),
                                            /*attn_mask=*/std::nullopt, is_training() ? dropout : 0.0,
                                            /*is_causal=*/true);
  return at::dropout(c_proj(y.transpose(1, 2).reshape({batch, time, dim})), dropout, is_training());
}

torch::Tensor GPT2AttentionImpl::decode(const torch::Tensor& x, int64_t block, KeyValues& read) {
  const int64_t batch = x.size(0), time = x.size(1), dim = x.size(2);
  auto heads = [&](const torch::Tensor& t) {  // [batch, time, dim] -> [batch, head, time, dim / head]
    return t.view({batch, time, n_head, dim / n_head}).transpose(1, 2);
  };
  const auto qkv = c_attn(x).split(dim, -1);
  const auto y = read.attend(block, heads(qkv[0]), heads(qkv[1]), heads(qkv[2]));
  return c_proj(y.transpose(1, 2).reshape({batch, time, dim}));
}

GPT2MLPImpl::GPT2MLPImpl(const GPT2Config& config) : dropout(config.dropout) {
  c_fc = register_module("c_fc", Conv1D(config.n_embd, 4 * config.n_embd, kInitStd));
  c_proj = register_module("c_proj", Conv1D(4 * config.n_embd, config.n_embd, residual_init_std(config)));
}

torch::Tensor GPT2MLPImpl::forward(const torch::Tensor& x) {
  return at::dropout(c_proj(at::gelu(c_fc(x), "tanh")), dropout, is_training());
}

GPT2BlockImpl::GPT2BlockImpl(const GPT2Config& config) {
  ln_1 = register_module("ln_1", layer_norm(config));
  attn = register_module("attn", GPT2Attention(config));
  ln_2 = register_module("ln_2", layer_norm(config));
  mlp = register_module("mlp", GPT2MLP(config));
}

torch::Tensor GPT2BlockImpl::forward(const torch::Tensor& x) {
  const auto y = x + attn(ln_1(x));
  return y + mlp(ln_2(y));
}

torch::Tensor GPT2BlockImpl::decode(const torch::Tensor& x, int64_t block, KeyValues& read) {
  const auto y = x + attn->decode(ln_1(x), block, read);
  return y + mlp(ln_2(y));
}

GPT2ModelImpl::GPT2ModelImpl(const GPT2Config& config) : config(config) {
  wte = register_module("wte", embedding(config.vocab_size, config));
  wpe = register_module("wpe", embedding(config.n_positions, config));
  register_module("h", h);
  for (int64_t i = 0; i < config.n_layer; ++i) h->push_back(GPT2Block(config));
  ln_f = register_module("ln_f", layer_norm(config));
}

torch::Tensor GPT2ModelImpl::forward(const torch::Tensor& ids) {
  const int64_t time = ids.size(-1);
  TORCH_CHECK(time <= config.n_positions, "a sequence of ", time, " tokens, but n_positions is ",
              config.n_positions);
  auto x = wte(ids) + wpe(at::arange(time, ids.options()));
  x = at::dropout(x, config.dropout, is_training());
  int64_t number = 0;
  for (const auto& block : *h) {
    const auto forward = [block](const torch::Tensor& in) { return block->as<GPT2Block>()->forward(in); };
    x = config.run_block ? config.run_block(number++, forward, x) : forward(x);
  }
  return ln_f(x);
}

torch::Tensor GPT2ModelImpl::decode(const torch::Tensor& ids, KeyValues& read) {
  const int64_t begin = read.length(), end = begin + ids.size(-1);
  TORCH_CHECK(end <= config.n_positions, "a text of ", end, " tokens, but n_positions is ",
              config.n_positions);
  TORCH_CHECK(!is_training() || config.dropout == 0.0, "next_logits() has no dropout: call eval() first");
  auto x = wte(ids) + wpe(at::arange(begin, end, ids.options()));
  int64_t number = 0;
  for (const auto& block : *h) x = block->as<GPT2Block>()->decode(x, number++, read);
  return ln_f(x);
}

GPT2LMHeadModelImpl::GPT2LMHeadModelImpl(const GPT2Config& config) {
  transformer = register_module("transformer", GPT2Model(config));
  make_lm_head(transformer->wte->weight, config.tie_word_embeddings);
  if (!config.tie_word_embeddings) torch::nn::init::normal_(lm_head->weight, 0.0, kInitStd);
  add_adapters(*this, config.lora, {"c_attn", "attn.c_proj"});
}

torch::Tensor GPT2LMHeadModelImpl::forward(const torch::Tensor& ids, const torch::Tensor& targets) {
  return logits_or_loss(transformer(ids), targets);
}

torch::Tensor GPT2LMHeadModelImpl::next_logits(const torch::Tensor& ids, KeyValues& read) {
  read.check(ids.size(-1));
  const auto logits = lm_head(transformer->decode(ids, read).select(1, -1));
  read.advance(ids.size(-1));
  return logits;
}

}  // namespace fsdp::models
