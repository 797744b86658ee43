// Promise: load() takes folders of safetensors that other programs wrote, and refuses those that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "behaviour/checkpoint_net.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "fsdp/checkpoint_files.h"
#include "models/gpt2.h"
#include "models/llama.h"

namespace fsdp::testing {
namespace {

using detail::Json;
using models::GPT2Config;
using models::GPT2LMHeadModel;
using models::LlamaConfig;
using models::LlamaForCausalLM;
using State = std::map<std::string, at::Tensor>;

// A part of a tensor, as a rank of another program held it.
struct Part {
  std::string name;
  at::Tensor tensor;
  std::vector<int64_t> offsets = {};
};

// With offsets as PyTorch's HuggingFaceStorageWriter notes them, if there are any.
void write_safetensors(const std::string& path, const std::vector<Part>& parts) {
  std::vector<detail::SafetensorsEntry> entries;
  Json info = Json::object();
  std::string data;
  for (const Part& part : parts) {
    const at::Tensor bytes = part.tensor.detach().contiguous();
    const auto begin = static_cast<int64_t>(data.size());
    data.append(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    entries.push_back({.name = part.name,
                       .dtype = part.tensor.scalar_type() == at::kFloat ? "F32" : "F64",
                       .shape = part.tensor.sizes().vec(),
                       .begin = begin,
                       .end = static_cast<int64_t>(data.size())});
    if (!part.offsets.empty()) info[part.name] = {{"saved_offsets", part.offsets}};
    if (part.tensor.dim() == 0) info[part.name] = {{"saved_offsets", Json::array()}};
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (info.size() == parts.size()) metadata["DCP_SHARDING_INFO"] = info.dump();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << detail::make_safetensors_header(entries, metadata) << data;
}

template <class Fn>
std::string checkpoint_error(Fn fn) {
  try {
    fn();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "not refused";
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
}

// What a run of PyTorch had: weights and Adam's moments of small_net().
State their_state() {
  State state;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    for (const std::string& one : {name, "state." + name + ".exp_avg", "state." + name + ".exp_avg_sq"})
      state[one] = at::rand(shape);
    state["state." + name + ".step"] = torch::tensor(6.0F);
  };
  torch::manual_seed(5);
  add("0.weight", {7, 5});
  add("0.bias", {7});
  add("1.weight", {3, 7});
  add("1.bias", {3});
  return state;
}

// Two ranks: rows of most tensors, of which the second has none of three, and columns of one.
void write_shards(const std::string& folder, const State& state) {
  std::vector<Part> first, second;
  for (const auto& [name, tensor] : state) {
    if (tensor.dim() == 0) {
      first.push_back({name, tensor});
      continue;
    }
    const int64_t dim = name.find("1.weight") != std::string::npos ? 1 : 0;
    const int64_t cut = tensor.size(dim) == 3 ? 3 : 4;
    std::vector<int64_t> offsets(static_cast<size_t>(tensor.dim()), 0);
    first.push_back({name, tensor.narrow(dim, 0, cut), offsets});
    offsets[static_cast<size_t>(dim)] = cut;
    second.push_back({name, tensor.narrow(dim, cut, tensor.size(dim) - cut), offsets});
  }
  write_safetensors(folder + "/shard-00001-model-00001-of-00001.safetensors", first);
  write_safetensors(folder + "/shard-00002-model-00001-of-00001.safetensors", second);
}

TEST(CheckpointFolders, ShardsOfPyTorchLoadOnAnyNumberOfRanks) {
  const TempFolder folder;
  const State theirs = their_state();
  write_shards(folder / "theirs", theirs);
  for (const int ranks : {1, 2, 3}) {
    const std::string run_folder = folder / ("run" + std::to_string(ranks));
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, small_net());
      AdamW optimizer(model.parameters(), AdamWOptions(0.25));
      RunState run{.model = model, .optimizer = &optimizer, .rng = false};
      const LoadReport report = load(folder / "theirs", run);
      require(report.missing.empty() && report.unexpected.empty(), "all of it fits");
      const auto& options =
          static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
      require(options.lr() == 0.25, "options stay as they are");
      save(run_folder, run);
    });
    State ours = read_checkpoint(run_folder);
    for (auto& [name, tensor] : ours)
      if (name.ends_with(".step")) tensor = tensor.to(at::kFloat);  // ours are fp64
    EXPECT_EQ(difference(ours, theirs), "") << ranks << " ranks";
  }
}

TEST(CheckpointFolders, WeightsAloneNeedNoOptimizer) {
  const TempFolder folder;
  State theirs = their_state();
  std::erase_if(theirs, [](const auto& one) { return one.first.starts_with("state."); });
  write_shards(folder / "theirs", theirs);
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, small_net());
    AdamW optimizer(model.parameters(), AdamWOptions(0.25));
    RunState run{.model = model, .optimizer = &optimizer};
    const LoadReport report = load(folder / "theirs", run);  // it has done no step
    require_words(report.optimizer.at(0), "has no optimizer");
    model(torch::ones({2, model.module()[0]->as<torch::nn::Linear>()->options.in_features()}))
        .sum()
        .backward();
    optimizer.step();
    require_words(checkpoint_error([&] { load(folder / "theirs", run); }), "has no optimizer");
    load(folder / "theirs", run, {.weights_only = true});
    const FullParams whole = model.full_params();
    require(model.module()[0]->as<torch::nn::Linear>()->weight.equal(theirs["0.weight"]), "weights");
  });
}

TEST(CheckpointFolders, RefusesMomentsOfAnotherOptimizer) {
  const TempFolder folder;
  write_shards(folder / "theirs", their_state());
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, small_net());
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    const at::Tensor before = model.parameters()[0].detach().clone();
    RunState run{.model = model, .optimizer = &optimizer};
    require_words(checkpoint_error([&] { load(folder / "theirs", run); }), "momentum_buffer' is missing");
    require(model.parameters()[0].equal(before) && optimizer.state().empty(), "nothing was loaded");
  });
}

TEST(CheckpointFolders, RefusesMomentsWhoseStepsAreLost) {
  const TempFolder folder;
  State theirs = their_state();
  for (auto& [name, tensor] : theirs)
    if (name.ends_with(".step")) tensor = at::zeros_like(tensor);  // as PyTorch's consolidation leaves them
  write_shards(folder / "theirs", theirs);
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, small_net());
    AdamW optimizer(model.parameters(), AdamWOptions(0.25));
    RunState run{.model = model, .optimizer = &optimizer};
    require_words(checkpoint_error([&] { load(folder / "theirs", run); }), "whose steps are all 0");
    require(optimizer.state().empty(), "nothing was loaded");
    load(folder / "theirs", run, {.weights_only = true});
  });
}

TEST(CheckpointFolders, RefusesWhatDoesNotMakeUpItsTensors) {
  const TempFolder folder;
  const at::Tensor weight = at::rand({7, 5});
  const auto refused = [&](const std::string& name, const std::string& words) {
    run_ranks(1, [&](World& world) {
      auto model = fully_shard(world, torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(false)));
      RunState run{.model = model};
      require_words(checkpoint_error([&] { load(folder / name, run); }), words);
    });
  };
  write_safetensors(folder / "hole/a.safetensors", {{"weight", weight.narrow(0, 0, 2), {0, 0}}});
  write_safetensors(folder / "hole/b.safetensors", {{"weight", weight.narrow(0, 3, 4), {3, 0}}});
  refused("hole", "its boxes hold 30 of 35 elements");
  write_safetensors(folder / "twice/a.safetensors", {{"weight", weight.narrow(0, 0, 4), {0, 0}}});
  write_safetensors(folder / "twice/b.safetensors", {{"weight", weight.narrow(0, 3, 4), {3, 0}}});
  refused("twice", "two files hold the same elements");
  write_safetensors(folder / "short/a.safetensors", {{"weight", weight.narrow(0, 0, 4), {0, 0}}});
  refused("short", "in the checkpoint [4, 5]");
  write_safetensors(folder / "dtypes/a.safetensors", {{"weight", weight.narrow(0, 0, 4), {0, 0}}});
  write_safetensors(folder / "dtypes/b.safetensors",
                    {{"weight", weight.narrow(0, 4, 3).to(at::kDouble), {4, 0}}});
  refused("dtypes", "has another dtype");
  write_safetensors(folder / "offsets/a.safetensors", {{"weight", weight, {0}}});
  refused("offsets", "'saved_offsets' have not as many dimensions");
  write_safetensors(folder / "far/a.safetensors", {{"weight", weight, {INT64_MAX - 3, 0}}});
  refused("far", "is too large");
}

TEST(CheckpointFolders, RefusesShardsOfOursWithoutManifest) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, small_net());
    const std::string made = save(folder / "run", {.model = model, .step = 1});
    if (world.rank() == 0) std::filesystem::remove(made + "/manifest.json");
    RunState run{.model = model};
    require_words(checkpoint_error([&] { load(made, run); }), "has lost its manifest.json");
  });
}

TEST(CheckpointFolders, PickledFoldersAreNamed) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "dcp");
  std::ofstream(folder / "dcp/.metadata") << "\x80\x04";
  std::filesystem::create_directories(folder / "hf");
  std::ofstream(folder / "hf/config.json") << "{}";
  write_safetensors(folder / "both/sharded/a.safetensors", {{"weight", at::rand({7, 5}), {0, 0}}});
  run_ranks(1, [&](World& world) {
    auto model = fully_shard(world, small_net());
    RunState run{.model = model};
    const auto error = [&](const char* name) { return checkpoint_error([&] { load(folder / name, run); }); };
    require_words(error("dcp"), "torch.distributed.checkpoint with a pickled .metadata");
    require_words(error("hf"), "Hugging Face folder without safetensors");
    require_words(error("both"), "its folder 'sharded'");
  });
}

// A folder of transformers with the weights of `module`.
template <class Holder>
void write_hf(const std::string& folder, Holder module, const Json& config) {
  std::filesystem::remove_all(folder);
  std::vector<Part> parts;
  for (const auto& item : module->named_parameters()) parts.push_back({item.key(), item.value()});
  write_safetensors(folder + "/model.safetensors", parts);
  std::ofstream(folder + "/config.json") << config.dump();
}

LlamaForCausalLM small_llama() {
  return LlamaForCausalLM(LlamaConfig{.vocab_size = 11,
                                      .hidden_size = 16,
                                      .intermediate_size = 24,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 4,
                                      .num_key_value_heads = 2,
                                      .max_position_embeddings = 32});
}

Json llama_config() {
  return {{"model_type", "llama"},        {"vocab_size", 11},       {"hidden_size", 16},
          {"intermediate_size", 24},      {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},     {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 32},
          {"tie_word_embeddings", false}, {"rope_theta", 10000.0},  {"hidden_act", "silu"}};
}

// What load() says of a folder with these values of config.json, "" when it takes it.
template <class Make>
std::string loaded(const std::string& folder, Make make, Json config, const Json& changed,
                   const std::string& said = "") {
  config.update(changed);
  torch::manual_seed(1);
  write_hf(folder, make(), config);
  std::string words;
  run_ranks(1, [&](World& world) {
    torch::manual_seed(2);
    auto model = fully_shard(world, make());
    const at::Tensor before = model.parameters()[0].detach().clone();
    RunState run{.model = model, .model_config = said};
    words = checkpoint_error([&] { load(folder, run, {.weights_only = true}); });
    if (words == "not refused") words = "";
    require(model.parameters()[0].equal(before) == !words.empty(), "it is loaded, or left alone");
  });
  return words;
}

TEST(CheckpointFolders, RefusesConfigsThatModelsDoNotCompute) {
  const TempFolder folder;
  const auto llama = [&](const Json& changed) {
    return loaded(folder / "hf", small_llama, llama_config(), changed);
  };
  EXPECT_EQ(llama(Json::object()), "");
  EXPECT_THAT(llama({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
              ::testing::HasSubstr("\"linear\""));
  EXPECT_THAT(llama({{"rope_parameters", {{"rope_type", "llama3"}}}}), ::testing::HasSubstr("\"llama3\""));
  EXPECT_THAT(llama({{"model_type", "mistral"}}), ::testing::HasSubstr("a model of the type 'mistral'"));
  EXPECT_THAT(llama({{"hidden_act", "gelu"}}), ::testing::HasSubstr("'hidden_act' is \"gelu\""));
  EXPECT_THAT(llama({{"num_attention_heads", 8}}), ::testing::HasSubstr("its config says"));  // of k_proj
  EXPECT_THAT(llama({{"quantization_config", {{"bits", 4}}}}), ::testing::HasSubstr("quantization_config"));
  const auto gpt2 = [&](const Json& changed) {
    const auto make = [] {
      return GPT2LMHeadModel(
          GPT2Config{.vocab_size = 11, .n_positions = 6, .n_embd = 8, .n_layer = 1, .n_head = 2});
    };
    return loaded(folder / "hf", make, {{"model_type", "gpt2"}, {"n_head", 2}, {"layer_norm_epsilon", 1e-5}},
                  changed);
  };
  EXPECT_EQ(gpt2(Json::object()), "");
  EXPECT_THAT(gpt2({{"activation_function", "relu"}}), ::testing::HasSubstr("\"relu\""));
  EXPECT_THAT(gpt2({{"scale_attn_weights", false}}), ::testing::HasSubstr("'scale_attn_weights'"));
}

TEST(CheckpointFolders, RefusesConfigsThatTheRunContradicts) {
  const TempFolder folder;
  const auto said = [&](const Json& values) {
    return loaded(folder / "hf", small_llama, llama_config(), Json::object(), values.dump());
  };
  EXPECT_EQ(said(llama_config()), "");
  EXPECT_EQ(said({{"rope_parameters", {{"rope_theta", 10000}}}, {"hidden_act", "swish"}}), "");
  EXPECT_EQ(said({{"bos_token_id", 7}, {"max_position_embeddings", 16}}), "");  // decides nothing here
  EXPECT_THAT(
      said({{"num_attention_heads", 8}}),
      ::testing::HasSubstr("'num_attention_heads' is 4 in its config.json, and 8 in RunState::model_config"));
  EXPECT_THAT(said({{"rope_parameters", {{"rope_theta", 500000.0}}}}), ::testing::HasSubstr("'rope_theta'"));
  EXPECT_THAT(said({{"rms_norm_eps", 1e-6}}), ::testing::HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(said({{"model_type", "gpt2"}}), ::testing::HasSubstr("'model_type'"));
}

TEST(CheckpointFolders, SafetensorsAloneAreNotJudged) {
  const TempFolder folder;
  write_hf(folder / "hf", small_llama(), {{"model_type", "mistral"}});
  std::filesystem::remove(folder / "hf/config.json");
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, small_llama());
    RunState run{.model = model};
    const LoadReport report = load(folder / "hf", run);
    require(report.missing.empty() && report.unexpected.empty(), "all of it fits");
  });
}

TEST(CheckpointFolders, ExportedSafetensorsLoadAgain) {
  const TempFolder folder;
  const auto make = [] {
    return GPT2LMHeadModel(
        GPT2Config{.vocab_size = 11, .n_positions = 6, .n_embd = 8, .n_layer = 2, .n_head = 2});
  };
  run_ranks(3, [&](World& world) {
    torch::manual_seed(4);
    auto model = fully_shard(world, make());
    AdamW optimizer(model.parameters(), AdamWOptions(0.1));
    const at::Tensor ids = at::arange(6).view({1, 6});
    model(ids, ids).backward();
    optimizer.step();
    save(folder / "run", {.model = model, .optimizer = &optimizer, .step = 1});
  });
  export_safetensors(folder / "run", folder / "out", {.max_file_bytes = 1000});
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make());
    RunState run{.model = model};
    const LoadReport report = load(folder / "out", run);
    require(report.missing.empty() && report.unexpected.empty(), "all of it fits, and no moments are there");
    run.rng = false;
    save(folder / "again", run);
  });
  State first = read_checkpoint(folder / "run"), second = read_checkpoint(folder / "again");
  std::erase_if(first, [](const auto& one) { return one.first.starts_with("state."); });
  EXPECT_EQ(difference(second, first), "");
}

}  // namespace
}  // namespace fsdp::testing
