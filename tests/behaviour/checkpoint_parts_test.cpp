// Promise: several models and optimizers of one run are saved together, by name, and loaded on any number of
// ranks.
#include <gtest/gtest.h>

#include "behaviour/checkpoint_net.h"
#include "support/slow_files.h"

namespace fsdp::testing {
namespace {

struct PairImpl : torch::nn::Module {
  explicit PairImpl(int64_t seed) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    up = register_module("up", torch::nn::Linear(5, 7));
    down = register_module("down", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Pair);

at::Tensor data(int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step) + 100);
  return torch::randn({4, 5}, generator);
}

// A generator and a discriminator, each with an optimizer of another type, and an average of the first.
struct Gan {
  explicit Gan(World& world, int64_t seed = 1)
      : maker(fully_shard(world, Pair(seed))),
        critic(fully_shard(world, Pair(seed + 1))),
        average(fully_shard(world, Pair(seed + 2))),
        makers(maker.parameters(), AdamWOptions(1e-2)),
        critics(critic.parameters(), torch::optim::SGDOptions(1e-2).momentum(0.9)),
        schedule(critics, 2, 0.5) {}

  RunState run(int64_t step = 0) {
    return {.model = maker,
            .optimizer = &makers,
            .step = step,
            .parts = {{"critic", {.model = critic, .optimizer = &critics, .scheduler = &schedule}},
                      {"average", {.model = average}}}};
  }

  void step(int64_t index) {
    const at::Tensor x = data(index);
    maker(x).square().sum().backward();
    makers.step();
    makers.zero_grad();
    (critic(x) - 1).square().sum().backward();
    critics.step();
    critics.zero_grad();
    schedule.step();
    const torch::NoGradGuard no_grad;
    auto mean = average.parameters(), now = maker.parameters();
    for (size_t i = 0; i < mean.size(); ++i) mean[i].lerp_(now[i], 0.1);
  }

  std::map<std::string, at::Tensor> weights() {
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, model] :
         std::map<std::string, ShardedModel*>{{"maker", &maker}, {"critic", &critic}, {"average", &average}})
      for (const auto& item : state_dict(*model))
        all[name + "." + item.key()] = item.value().boxes.front().tensor;
    return all;
  }

  Sharded<PairImpl> maker, critic, average;
  AdamW makers;
  torch::optim::SGD critics;
  torch::optim::StepLR schedule;
};

TEST(CheckpointParts, SeveralModelsResumeOnOtherRanks) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    Gan gan(world);
    for (int64_t i = 0; i < 3; ++i) gan.step(i);
    save(folder / "run", gan.run(3));
    for (int64_t i = 3; i < 6; ++i) gan.step(i);
    save(folder / "end", gan.run(6));
  });
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [&](World& world) {
      Gan gan(world, 50);  // other values
      RunState run = gan.run();
      load(folder / "run", run);
      require(run.step == 3, "the step was not loaded");
      for (int64_t i = 3; i < 6; ++i) gan.step(i);
      save(folder / ("end-" + std::to_string(ranks)), gan.run(6));
    });
  const auto wanted = read_checkpoint(folder / "end");
  EXPECT_EQ(wanted.count("critic.up.weight") + wanted.count("state.critic.up.weight.momentum_buffer") +
                wanted.count("average.up.weight") + wanted.count("state.up.weight.exp_avg"),
            4U);
  EXPECT_EQ(difference(read_checkpoint(folder / "end-2"), wanted), "");
  for (const char* other : {"end-1", "end-3"})
    for (const auto& [name, tensor] : read_checkpoint(folder / other)) {
      if (name.starts_with("rng.")) continue;
      EXPECT_TRUE(torch::allclose(tensor, wanted.at(name), 1e-5, 1e-6)) << other << " " << name;
    }
}

// Muon and AdamW: each has some of the parameters of one model.
TEST(CheckpointParts, TwoOptimizersOfOneModel) {
  const TempFolder folder;
  const auto train = [&](World& world, int64_t first, bool resume) {
    auto model = fully_shard(world, Pair(resume ? 9 : 1));
    const auto params = model.named_parameters();
    torch::optim::SGD matrices({params["up.weight"], params["down.weight"]},
                               torch::optim::SGDOptions(resume ? 1.0 : 0.01).momentum(0.9));
    AdamW vectors({params["up.bias"], params["down.bias"]}, AdamWOptions(resume ? 1.0 : 0.01));
    RunState run{.model = model, .optimizer = &vectors, .parts = {{"matrices", {.optimizer = &matrices}}}};
    if (resume) load(folder / "run", run);
    for (int64_t i = first; i < first + 3; ++i) {
      model(data(i)).square().sum().backward();
      for (torch::optim::Optimizer* one : {static_cast<torch::optim::Optimizer*>(&matrices),
                                           static_cast<torch::optim::Optimizer*>(&vectors)}) {
        one->step();
        one->zero_grad();
      }
    }
    run.step = first + 3;
    save(folder / (resume ? "resumed" : "run"), run);
    if (resume) return;
    for (int64_t i = 3; i < 6; ++i) {
      model(data(i)).square().sum().backward();
      matrices.step();
      vectors.step();
      model.zero_grad();
    }
    run.step = 6;
    save(folder / "whole", run);
  };
  run_ranks(2, [&](World& world) { train(world, 0, false); });
  run_ranks(2, [&](World& world) { train(world, 3, true); });
  EXPECT_EQ(difference(read_checkpoint(folder / "resumed"), read_checkpoint(folder / "whole")), "");
}

TEST(CheckpointParts, ARunTakesTheModelsItHas) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    Gan gan(world);
    gan.step(0);
    save(folder / "run", gan.run(1));
    Gan other(world, 20);
    RunState alone{.model = other.maker, .optimizer = &other.makers};
    const LoadReport report = load(folder / "run", alone);
    require(report.unexpected.empty(), "a part that the run does not take is unexpected");
    const auto got = other.weights();
    for (const auto& [name, tensor] : gan.weights())
      require(torch::equal(got.at(name), tensor) == name.starts_with("maker."), name);

    save(folder / "alone", alone);
    RunState more = gan.run();
    const std::string words = words_of([&] { load(folder / "alone", more); });
    require_words(words, "critic.up.weight");
    require_words(words, "average.down.bias");
    require_words(words, "nothing was loaded");
  });
}

TEST(CheckpointParts, RefusesNamesThatClash) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    Gan gan(world);
    gan.step(0);
    RunState run = gan.run(1);
    run.parts["up"] = {.model = gan.critic};
    require_words(refusal([&] { save(folder / "run", run); }), "'up'");
    run.parts.erase("up");
    run.parts["again"] = {.optimizer = &gan.makers};
    require_words(refusal([&] { save(folder / "run", run); }), "state.up.weight.exp_avg");
    run.parts.erase("again");
    for (const char* name : {"", "a.b", "state", "value", "rng"}) {
      run.parts = {{name, {.model = gan.critic}}};
      require_words(refusal([&] { save(folder / "run", run); }), std::string("'") + name + "'");
    }
    require(!has_checkpoint(folder / "run"), "something was saved");
  });
}

// Training goes on with every model while a thread reads them.
TEST(CheckpointParts, ABackgroundSaveHoldsEveryModel) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    SlowFiles files;
    files.milliseconds = 20;
    Gan gan(world);
    gan.step(0);
    const auto wanted = gan.weights();
    BackgroundSaver saver(folder / "run", {}, 0,
                          files);  // nothing is staged: files are written from the shards
    saver.save(gan.run(1));
    for (int64_t i = 1; i < 4; ++i) gan.step(i);
    saver.wait();
    Gan other(world, 30);
    RunState run = other.run();
    load(folder / "run", run);
    require(difference(other.weights(), wanted).empty(), difference(other.weights(), wanted));
  });
}

}  // namespace
}  // namespace fsdp::testing
