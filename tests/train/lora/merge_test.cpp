// Promise: an exported model with merged adapters gives the logits of the model with adapters.
#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/checkpoint_files.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "files/lora_merge.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "train/lora/small_specs.h"
#include "trainer/language_model.h"

namespace fsdp::testing {
namespace {

using models::LoraConfig;
using train::LanguageModel;
using train::ModelSpec;

LanguageModel make(const World& world, const ModelSpec& spec, uint64_t seed = 3) {
  LanguageModel model = train::make_language_model(world, spec, {.seed = seed}, {});
  const torch::NoGradGuard no_grad;
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(world.rank()));
  for (auto& item : model.model.named_parameters())  // B starts as zeros, and would add nothing
    if (models::is_adapter(item.key())) item.value().normal_(0, 0.1, generator);
  return model;
}

at::Tensor logits(const LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  LanguageModel copy = model;
  copy.model.eval();
  return copy.logits(torch::arange(2 * kContext).view({2, kContext})).clone();
}

std::string failure(const std::function<void()>& does) {
  try {
    does();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "not refused";
}

class Folders {
 public:
  std::string base() const { return temp_ / "base"; }
  std::string run() const { return temp_ / "run"; }
  std::string merged() const { return temp_ / "merged"; }

 private:
  TempFolder temp_;
};

// Saves weights and adapters apart, on two ranks. Returns the logits of both together.
at::Tensor save_apart(const Folders& folders, const std::string& type, const LoraConfig& lora) {
  at::Tensor expected;
  run_ranks(2, [&](World& world) {
    const LanguageModel model = make(world, spec_of(type, lora));
    RunState run{.model = model.model, .model_config = train::hugging_face_config(spec_of(type, {}))};
    save(folders.base(), run, {.filter = [](const std::string& name) { return !models::is_adapter(name); }});
    run.model_config = train::hugging_face_config(spec_of(type, lora));
    save(folders.run(), run, {.filter = models::is_adapter});
    const at::Tensor found = logits(model);
    if (world.rank() == 0) expected = found;
  });
  return expected;
}

at::Tensor logits_of_folder(const std::string& folder, const std::string& type) {
  at::Tensor found;
  run_ranks(1, [&](World& world) {
    const LanguageModel model = make(world, spec_of(type, {}), /*seed=*/9);
    RunState run{.model = model.model, .model_config = train::hugging_face_config(spec_of(type, {}))};
    load(folder, run, {.weights_only = true, .cast = true});
    found = logits(model);
  });
  return found;
}

void expect_merged(const std::string& type, const LoraConfig& lora) {
  const Folders folders;
  const at::Tensor expected = save_apart(folders, type, lora);
  export_hf(folders.run(), folders.merged(), {.base = folders.base()});
  const double largest = expected.abs().max().item<double>();
  const at::Tensor found = logits_of_folder(folders.merged(), type);
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-5 * largest) << type;
  const at::Tensor without = logits_of_folder(folders.base(), type);
  EXPECT_GE((without - expected).abs().max().item<double>(), 1e-2 * largest) << "adapters add nothing";
}

TEST(LoraMerge, GivesTheLogitsOfTheAdaptedLlama) {
  expect_merged("llama", {.rank = 3, .alpha = 5});
  expect_merged("llama", {.rank = 2, .targets = {"gate_proj", "up_proj", "down_proj", "v_proj"}});
}

TEST(LoraMerge, GivesTheLogitsOfTheAdaptedGpt2) {
  expect_merged("gpt2", {.rank = 3, .alpha = 5});
  expect_merged("gpt2", {.rank = 2, .targets = {"c_attn", "c_proj", "c_fc"}});
}

TEST(LoraMerge, TakesAHuggingFaceFolderAsTheBase) {
  const Folders folders;
  const at::Tensor expected = save_apart(folders, "llama", {.rank = 3});
  const std::string hf = folders.base() + "-hf";
  export_hf(folders.base(), hf);
  export_hf(folders.run(), folders.merged(), {.base = hf});
  const at::Tensor found = logits_of_folder(folders.merged(), "llama");
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>());
}

// bf16 keeps 8 bits of every weight: an error of 2^-9 in each, which two blocks do not make ten times as
// large.
TEST(LoraMerge, RoundsTheSumToTheDtypeAskedFor) {
  const Folders folders;
  const at::Tensor expected = save_apart(folders, "llama", {.rank = 3});
  export_hf(folders.run(), folders.merged(), {.base = folders.base(), .dtype = "BF16"});
  const double error = (logits_of_folder(folders.merged(), "llama") - expected).abs().max().item<double>();
  EXPECT_LE(error, 0.02 * expected.abs().max().item<double>());
  EXPECT_GT(error, 0);
}

// A tensor is read in blocks, which may begin and end within a row.
TEST(LoraMerge, AddsToPiecesOfAnyLength) {
  const detail::LowRankMatrix matrix{
      .rows = 3, .rank = 2, .columns = 4, .left = {1, 2, 3, 4, 5, 6}, .right = {1, 2, 3, 4, 10, 20, 30, 40}};
  const std::vector<double> whole{21, 42, 63, 84, 43, 86, 129, 172, 65, 130, 195, 260};
  for (size_t length = 1; length <= whole.size(); ++length) {
    std::vector<double> values(whole.size());
    for (size_t at = 0; at < values.size(); at += length)
      matrix.add_to(std::span(values).subspan(at, std::min(length, values.size() - at)),
                    static_cast<int64_t>(at));
    EXPECT_EQ(values, whole) << length;
  }
}

TEST(LoraMerge, MergesACheckpointThatHasBoth) {
  const Folders folders;
  at::Tensor expected;
  run_ranks(2, [&](World& world) {
    const LanguageModel model = make(world, spec_of("gpt2", {.rank = 2}));
    save(folders.run(),
         {.model = model.model, .model_config = train::hugging_face_config(spec_of("gpt2", {.rank = 2}))});
    const at::Tensor found = logits(model);
    if (world.rank() == 0) expected = found;
  });
  export_hf(folders.run(), folders.merged());
  const at::Tensor found = logits_of_folder(folders.merged(), "gpt2");
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>());
  require_words(failure([&] { export_hf(folders.run(), folders.merged() + "2", {.base = folders.base()}); }),
                "it is not one of adapters alone");
}

TEST(LoraMerge, RefusesWhatDoesNotFit) {
  const Folders folders;
  save_apart(folders, "llama", {.rank = 3});
  require_words(failure([&] { export_hf(folders.run(), folders.merged()); }), "--base DIR");
  run_ranks(1, [&](World& world) {
    ModelSpec wider = spec_of("llama", {});
    wider.hidden_size = 32;
    const LanguageModel other = make(world, wider);
    save(folders.base() + "-wide", {.model = other.model});
  });
  require_words(
      failure([&] { export_hf(folders.run(), folders.merged(), {.base = folders.base() + "-wide"}); }),
      "[40,32]");
  require_words(failure([&] {
                  export_hf(folders.run(), folders.merged(),
                            {.config = R"({"lora": {"rank": 4, "alpha": 1}})", .base = folders.base()});
                }),
                "not of the rank 4");
  EXPECT_FALSE(std::filesystem::exists(folders.merged()));
}

}  // namespace
}  // namespace fsdp::testing
