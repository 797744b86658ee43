// Trains a small GPT-2 to count, and lets it go on from three numbers. It stays sharded.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

#include "models/gpt2.h"

void train(fsdp::World& world) {
  torch::manual_seed(world.rank());
  const fsdp::models::GPT2Config config{.vocab_size = 32, .n_positions = 32, .n_embd = 48, .n_layer = 3};
  auto model = fsdp::fully_shard(world, fsdp::models::GPT2LMHeadModel(config));
  torch::optim::AdamW optimizer(model.parameters(), 3e-3);
  const auto text = torch::arange(32, world.device()).roll(-world.rank()).unsqueeze(0);  // [1, time]
  for (int step = 0; step < 60; ++step) {
    model(text.slice(1, 0, -1), text.slice(1, 1)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  model.eval();
  const torch::NoGradGuard no_grad;
  auto ids = text.slice(1, 0, 3);
  while (ids.size(1) < 16) {
    const auto logits = model(ids).select(1, -1) / 0.7;  // [1, vocab]
    ids = torch::cat({ids, logits.softmax(-1).multinomial(1)}, 1);
  }
  if (world.rank() == 0) std::cout << ids << std::endl;
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
