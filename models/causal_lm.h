// Shared parts of the language models: last layer, loss, and the list of parameters with a tied weight.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp::models {

// Runs block number `block` on `x` by calling forward(x), maybe again in backward: fsdp::recompute_blocks()
// makes one for activation checkpointing. `forward` may be copied.
using BlockForward = std::function<torch::Tensor(const torch::Tensor& x)>;
using BlockRunner =
    std::function<torch::Tensor(int64_t block, const BlockForward& forward, const torch::Tensor& x)>;

// hidden [..., dim] -> logits [..., vocab]. Registers `weight` [vocab, dim] itself, not a copy: a model with
// tied embeddings passes the embedding's.
struct LMHeadImpl : torch::nn::Module {
  explicit LMHeadImpl(torch::Tensor weight);
  torch::Tensor forward(const torch::Tensor& hidden);

  torch::Tensor weight;
};
TORCH_MODULE(LMHead);

// Base of the language models. A tied weight is one tensor registered under two names, as in Python. LibTorch
// would list it twice, and a stock optimizer would step it twice. Here, as in Python, it is listed once,
// under its first name. Seen as a torch::nn::Module the model still shows both names, as a Python state dict
// does.
struct CausalLMImpl : torch::nn::Module {
  torch::OrderedDict<std::string, torch::Tensor> named_parameters(bool recurse = true) const;
  std::vector<torch::Tensor> parameters(bool recurse = true) const;

  LMHead lm_head{nullptr};

 protected:
  // Registers lm_head over `embedding` [vocab, dim] when `tied`, else over a new, uninitialised weight like
  // it.
  void make_lm_head(const torch::Tensor& embedding, bool tied);

  // Logits [batch, time, vocab] of `hidden` [batch, time, dim]; with `targets` [batch, time], the mean cross
  // entropy instead, in fp32. targets[b][t] is the token that follows position t; -100 is ignored.
  torch::Tensor logits_or_loss(const torch::Tensor& hidden, const torch::Tensor& targets);
};

}  // namespace fsdp::models
