// start_from_hf FOLDER RANKS: loads FOLDER/start, which transformers saved, on RANKS ranks, writes its logits
// of FOLDER/ids to FOLDER/logits, trains a step, saves to FOLDER/run, and writes the new logits to
// FOLDER/trained.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/gpt2.h"
#include "models/llama.h"

namespace {

using namespace fsdp::models;  // NOLINT
using Json = nlohmann::json;

GPT2LMHeadModel make_gpt2(const Json& config) {
  return GPT2LMHeadModel(GPT2Config{.vocab_size = config.at("vocab_size"),
                                    .n_positions = config.at("n_positions"),
                                    .n_embd = config.at("n_embd"),
                                    .n_layer = config.at("n_layer"),
                                    .n_head = config.at("n_head"),
                                    .layer_norm_epsilon = config.at("layer_norm_epsilon"),
                                    .tie_word_embeddings = config.value("tie_word_embeddings", true)});
}

LlamaForCausalLM make_llama(const Json& config) {
  return LlamaForCausalLM(LlamaConfig{.vocab_size = config.at("vocab_size"),
                                      .hidden_size = config.at("hidden_size"),
                                      .intermediate_size = config.at("intermediate_size"),
                                      .num_hidden_layers = config.at("num_hidden_layers"),
                                      .num_attention_heads = config.at("num_attention_heads"),
                                      .num_key_value_heads = config.at("num_key_value_heads"),
                                      .max_position_embeddings = config.at("max_position_embeddings"),
                                      .rms_norm_eps = config.at("rms_norm_eps"),
                                      .tie_word_embeddings = config.at("tie_word_embeddings")});
}

torch::Tensor read_ids(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(int64_t));
  return torch::from_blob(const_cast<char*>(bytes.data()), {count}, torch::kLong).clone().view({2, -1});
}

void write(const fsdp::World& world, const std::string& path, const torch::Tensor& values) {
  if (world.rank() != 0) return;
  const torch::Tensor flat = values.contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(flat.const_data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
}

template <class Holder>
void work(fsdp::World& world, const std::string& folder, const Json& config, Holder module) {
  auto model = fsdp::fully_shard(world, module);
  fsdp::RunState run{.model = model, .step = 1, .model_config = config.dump()};
  fsdp::load(folder + "/start", run, {.weights_only = true});
  const torch::Tensor ids = read_ids(folder + "/ids");
  const auto logits = [&] {
    const torch::NoGradGuard no_grad;
    return model(ids);
  };
  write(world, folder + "/logits", logits());
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
  model(ids, ids.roll(-1, 1)).backward();
  optimizer.step();
  fsdp::save(folder + "/run", run);
  write(world, folder + "/trained", logits());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: start_from_hf FOLDER RANKS\n");
    return 2;
  }
  const std::string folder = argv[1];
  try {
    Json config;
    std::ifstream(folder + "/start/config.json") >> config;
    fsdp::run_local(std::stoi(argv[2]), [&](fsdp::World& world) {
      torch::manual_seed(9);
      if (config.at("model_type") == "gpt2")
        work(world, folder, config, make_gpt2(config));
      else
        work(world, folder, config, make_llama(config));
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "start_from_hf: %s\n", error.what());
    return 1;
  }
  return 0;
}
