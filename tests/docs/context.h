// The names that C++ blocks of the pages use without declaring them. Nothing here is defined: blocks that
// need it are compiled, not linked.
#pragma once

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt2.h"
#include "models/llama.h"

namespace doc {

namespace models = fsdp::models;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t dim = 64);
  torch::Tensor forward(const torch::Tensor& x);
};
TORCH_MODULE(Block);

struct Config {
  int64_t layers = 2;
  fsdp::BlockRunner run_block;
};

// The user's model.
struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y = {});
  torch::nn::ModuleList layers;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(GPT);

extern fsdp::World world;
extern Config config;
extern GPT module, net;
extern std::vector<Block> blocks;
extern torch::nn::Sequential sequential;
extern fsdp::ShardOptions options;
extern fsdp::Sharded<GPTImpl> model;

// Training.
extern fsdp::AdamW optimizer;
extern torch::optim::StepLR scheduler;
extern fsdp::Sampler sampler;
extern fsdp::GradScaler scaler;
extern torch::Tensor x, y, loss, ids, targets;
extern std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
extern int64_t step, steps, dim;
extern double learning_rate;
torch::Tensor microbatch(int64_t number);

// Checkpoints.
extern fsdp::RunState run;
struct LionState : torch::optim::OptimizerCloneableParamState<LionState> {
  torch::Tensor exp_avg;
  int64_t step = 0;
};

// docs/sharding.md, LAMB: the update of Adam for parameter i.
torch::Tensor adam_update(size_t i);

// docs/checkpoints.md: a run of several models and optimizers.
extern fsdp::Sharded<GPTImpl> generator, critic, average;
extern fsdp::AdamW adamw, critic_adamw, muon;
extern torch::optim::StepLR critic_schedule;

}  // namespace doc
