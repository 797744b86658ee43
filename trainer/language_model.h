// A sharded language model of any kind behind one interface: a loss for training, logits for generation.
#pragma once

#include <fsdp/fsdp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/model_spec.h"

namespace fsdp::train {

struct LanguageModel {
  // The mean cross entropy over the targets [batch, time] that are not -100.
  using Loss = std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& targets)>;
  using Logits = std::function<at::Tensor(const at::Tensor& tokens)>;
  // Takes the tokens [1, time] that follow those it took before; returns the logits [1, vocab] of the next.
  using NextLogits = std::function<at::Tensor(const at::Tensor& tokens)>;

  ShardedModel model;
  Loss loss;
  Logits logits;  // [batch, time, vocab]
  // Begins a text of at most `context` tokens; see generate.h. GPT-2 and Llama cache keys and values.
  std::function<NextLogits(int64_t context)> start_text;
  std::function<Loss()> capture_step = {};  // makes a loss whose backward has run: see fsdp::capture()
};

struct ModelOptions {
  bool recompute = false;  // activation checkpointing of every block
  uint64_t seed = 0;       // of the initial values
};

// Makes the model without memory and shards it: no rank ever holds it whole. Collective.
LanguageModel make_language_model(const World& world, const ModelSpec& spec, const ModelOptions& options,
                                  const ShardOptions& sharding);

// The module alone, made without memory, to be looked at. Throws c10::Error for a script.
std::shared_ptr<torch::nn::Module> make_meta_module(const ModelSpec& spec);

}  // namespace fsdp::train
