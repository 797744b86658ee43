// Promise: what a run has besides its model is loaded with it, or the load is refused and changes nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "behaviour/checkpoint_net.h"

namespace fsdp::testing {
namespace {

// As in reinforcement learning: its parameters are called value.weight and value.bias.
struct CriticImpl : torch::nn::Module {
  CriticImpl() { value = register_module("value", torch::nn::Linear(5, 3)); }
  at::Tensor forward(const at::Tensor& x) { return value(x); }
  torch::nn::Linear value{nullptr};
};
TORCH_MODULE(Critic);

TEST(CheckpointRun, AModuleCalledValueIsNoValue) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, Critic());
    RunState run{.model = model, .step = 1};
    run.values["note"] = std::string("a value");
    run.values["table"] = torch::ones({2});
    save(folder / "run", run);
    RunState again{.model = model};
    load(folder / "run", again);
    require(again.values.size() == 2, std::to_string(again.values.size()) + " values were loaded");
    again.step = 2;
    save(folder / "run", again);
  });
}

TEST(CheckpointRun, ASamplerThatDoesNotFitChangesNothing) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, Critic());
    Sampler sampler(world, 10), other(world, 11);
    save(folder / "run", {.model = model, .sampler = &sampler, .step = 1});
    const torch::NoGradGuard no_grad;
    for (at::Tensor slice : model.parameters()) slice.fill_(7);
    RunState run{.model = model, .sampler = &other};
    require_words(refusal([&] { load(folder / "run", run); }), "the saved sampler has dataset_size 10");
    require(run.step == 0, "the step was loaded");
    for (const at::Tensor& slice : model.parameters())
      require((slice == 7).all().item<bool>(), "the model was loaded");
  });
}

void damage(const std::string& checkpoint) {
  for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
    if (file.path().string().find("-model-") == std::string::npos) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-1, std::ios::end);
    bytes.put('x');
  }
}

// Whether a load of what is damaged says so, and what the model does then.
void load_damaged(const std::string& folder, World& world, bool in_use) {
  auto model = fully_shard(world, Critic());
  const auto call = [&] { return model(torch::ones({2, 5})).sum().item<double>(); };
  RunState run{.model = model, .step = 1};
  save(folder, run);
  const at::Tensor before = model.parameters()[0].detach().clone();
  run.step = 2;
  save(folder, run);
  if (world.rank() == 0) damage(folder + "/step-00000002");
  const double value = in_use ? call() : 0;
  bool refused = false;
  try {
    load(folder, run);
  } catch (const CheckpointError& error) {
    require_words(error.what(), "is damaged");
    refused = true;
  }
  require(refused, "damage is found");
  if (in_use) {
    require(call() == value, "nothing was changed");
  } else {
    require_words(refusal([&] { call(); }), "half those of " + folder + "/step-00000002");
    require_words(refusal([&] { save(folder, run); }), "half those of");
  }
  load(folder + "/step-00000001", run);
  call();
  require(model.parameters()[0].equal(before), "the whole one is loaded");
}

TEST(CheckpointRun, DamageChangesNothingInAModelThatIsInUse) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) { load_damaged(folder / "run", world, true); });
}

TEST(CheckpointRun, DamageMakesAFreshModelUnusableUntilALoadSucceeds) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) { load_damaged(folder / "run", world, false); });
}

// Saves with one and loads with the other.
template <class Saved, class Loaded>
void exchange(const std::string& folder) {
  run_ranks(2, [&](World& world) {
    const auto step = [&](auto& model, auto& optimizer) {
      model(torch::full({2, 5}, 1.0 + world.rank())).square().sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    auto model = fully_shard(world, Critic());
    Saved optimizer(model.parameters(), AdamWOptions(0.1));
    step(model, optimizer);
    save(folder, {.model = model, .optimizer = &optimizer, .step = 1});
    auto other = fully_shard(world, Critic());
    Loaded others(other.parameters(), AdamWOptions(1.0));
    RunState run{.model = other, .optimizer = &others};
    load(folder, run);
    step(model, optimizer);
    step(other, others);
    for (size_t i = 0; i < model.parameters().size(); ++i)
      require(torch::allclose(model.parameters()[i], other.parameters()[i], 1e-6, 1e-6), "they differ");
  });
}

TEST(CheckpointRun, OurAdamWAndLibTorchsAreOneType) {
  const TempFolder folder;
  exchange<AdamW, torch::optim::AdamW>(folder / "from ours");
  exchange<torch::optim::AdamW, AdamW>(folder / "from theirs");
}

}  // namespace
}  // namespace fsdp::testing
