// Promise: docs/checkpoint_format.md is enough to read a checkpoint. A reader written from that page alone,
// in Python without torch, finds every byte that was in memory, and refuses damage.
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "behaviour/checkpoint_net.h"
#include "files/json.h"

namespace fsdp::testing {
namespace {

namespace fs = std::filesystem;
using detail::Json;

void write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void write_bytes(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  write_file(path, flat.const_data_ptr(), flat.nbytes());
}

// What the reader says, its errors too, and how it ends.
struct Said {
  std::string words;
  bool ok = false;
};
Said read_by_page(const std::string& arguments) {
  Said said;
  const std::string command = FSDP_TEST_READER " " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return said;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) said.words += static_cast<char>(c);
  said.ok = ::pclose(pipe) == 0;
  return said;
}

struct Run {
  explicit Run(const World& world)
      : model(fully_shard(world, std::make_shared<MixedNet>(), mixed_options())),
        optimizer(model.parameters(), AdamWOptions(1e-2).weight_decay(0.05)),
        scheduler(optimizer, 2, 0.5),
        sampler(world, 100, {.seed = UINT64_MAX}) {}

  RunState state() {
    RunState run{.model = model, .optimizer = &optimizer, .scheduler = &scheduler, .sampler = &sampler};
    run.step = 3;
    run.values = {{"resumed", true},
                  {"epoch", int64_t{1} << 60},
                  {"best", 0.1},
                  {"worst", -std::numeric_limits<double>::infinity()},
                  {"note", std::string("größer \"1\"\n")},
                  {"seen", torch::arange(6).view({2, 3}).t()}};
    run.model_config = R"({"layers": [1, 2]})";
    return run;
  }

  Sharded<MixedNet> model;
  AdamW optimizer;
  torch::optim::StepLR scheduler;
  Sampler sampler;
};

void train_and_save(World& world, const std::string& folder, const std::string& expected) {
  Run run(world);
  run.sampler.reset();
  for (int64_t step = 0; step < 3; ++step) {
    (void)run.sampler.next(2);
    run.model(run.model.module().batch(step * world.size() + world.rank())).backward();
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.scheduler.step();
  }
  save(folder, run.state(), {.keep_last = 2});
  const auto whole = whole_state(run.model);
  if (world.rank() != 0) return;
  for (const auto& [name, tensor] : whole)
    if (name != "embedding.weight") write_bytes(expected + "/" + name, tensor);  // is also called head
  write_bytes(expected + "/value.seen", std::get<at::Tensor>(run.state().values.at("seen")));
}

// On one rank a moment is whole, in the order of its parameter's memory.
void write_moments(World& world, const std::string& folder, const std::string& expected) {
  Run run(world);
  RunState state = run.state();
  load(folder, state);
  for (const auto& item : run.model.named_parameters()) {
    const auto found = run.optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == run.optimizer.state().end()) continue;
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    const auto write = [&](const char* key, const at::Tensor& tensor) {
      write_bytes(expected + "/state." + item.key() + "." + key, tensor);
    };
    const auto row_major = [&](const at::Tensor& moment) {
      return item.key() == "conv.weight" ? moment.view({6, 3, 3, 3}).permute({0, 3, 1, 2}) : moment;
    };
    write("exp_avg", row_major(moments.exp_avg()));
    write("exp_avg_sq", row_major(moments.exp_avg_sq()));
    write("step", torch::tensor(static_cast<double>(moments.step()), at::kDouble));
  }
}

void write_facts(const std::string& path) {
  const Json facts = {{"format", 2},
                      {"step", 3},
                      {"world", 3},
                      {"aliases", {{"embedding.weight", "head"}}},
                      {"tensors/conv.weight/order", {0, 2, 3, 1}},
                      {"tensors/c128/real_pairs", true},
                      {"run/optimizer/type", "AdamW"},
                      {"run/scheduler", {{"steps", 3}}},
                      {"run/sampler",
                       {{"epoch", 0},
                        {"taken", 18},
                        {"dataset_size", 100},
                        {"seed", "18446744073709551615"},
                        {"shuffle", true},
                        {"drop_last", false}}},
                      {"run/model_config", {{"layers", {1, 2}}}},
                      {"run/values",
                       {{"resumed", true},
                        {"epoch", {{"int", int64_t{1} << 60}}},
                        {"best", {{"float", 0.1}}},
                        {"worst", {{"float", "-inf"}}},
                        {"note", "größer \"1\"\n"}}}};
  std::ofstream(path) << facts.dump();
}

void flip_byte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(CheckpointFormat, ThePageIsEnoughToReadACheckpoint) {
  const TempFolder folder;
  const std::string run = folder / "run", expected = folder / "expected";
  fs::create_directory(expected);
  run_ranks(3, [&](World& world) { train_and_save(world, run, expected); });
  run_ranks(1, [&](World& world) { write_moments(world, run, expected); });
  write_facts(expected + "/expected.json");

  const Said said = read_by_page(run + " " + expected);
  EXPECT_TRUE(said.ok) << said.words;
  EXPECT_NE(said.words.find("as expected"), std::string::npos) << said.words;
  EXPECT_NE(said.words.find("hashes were checked"), std::string::npos) << said.words;

  // Every file is guarded, at its beginning and at its end.
  const std::string checkpoint = run + "/step-00000003", copy = folder / "copy";
  for (const auto& file : fs::directory_iterator(checkpoint))
    for (const int64_t at : {int64_t{9}, static_cast<int64_t>(file.file_size()) - 6}) {
      SCOPED_TRACE(file.path().filename().string() + ", byte " + std::to_string(at));
      fs::copy(checkpoint, copy);
      flip_byte(copy + "/" + file.path().filename().string(), at);
      const Said damaged = read_by_page(copy);
      EXPECT_FALSE(damaged.ok);
      EXPECT_NE(damaged.words.find("refused: "), std::string::npos) << damaged.words;
      fs::remove_all(copy);
    }
}

}  // namespace
}  // namespace fsdp::testing
