// Fine-tunes a GPT-2 that transformers saved in a folder: 09_load_hf --ranks 2 FOLDER
// No rank ever holds the whole model.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/gpt2.h"

void train(fsdp::World& world, const std::vector<std::string>& arguments) {
  TORCH_CHECK(arguments.size() == 1, "usage: 09_load_hf [--ranks N] FOLDER");
  const std::string& folder = arguments[0];
  const auto json = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
  const fsdp::models::GPT2Config config{.vocab_size = json["vocab_size"],
                                        .n_positions = json["n_positions"],
                                        .n_embd = json["n_embd"],
                                        .n_layer = json["n_layer"],
                                        .n_head = json["n_head"]};
  auto gpt = fsdp::on_meta([&] { return fsdp::models::GPT2LMHeadModel(config); });  // shapes, no memory
  auto model = fsdp::fully_shard(world, gpt);
  fsdp::RunState run{.model = model};
  fsdp::load(folder, run, {.weights_only = true});  // each rank reads its part
  torch::optim::AdamW optimizer(model.parameters(), 1e-3);
  const auto text = torch::arange(config.n_positions, world.device()).unsqueeze(0);  // [1, time]
  for (int step = 1; step <= 20; ++step) {
    const auto loss = model(text.slice(1, 0, -1), text.slice(1, 1));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.4f\n", step, loss.item<double>());
  }
}

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, train); }
