// Promise: a save in the background holds the values of the moment save() was called, whatever training does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "behaviour/checkpoint_net.h"
#include "behaviour/layers_net.h"
#include "support/slow_files.h"

namespace fsdp::testing {
namespace {

template <class Optimizer, class Options>
struct Training {
  Training(const World& world, const Options& options)
      : model(fully_shard(world, std::make_shared<MixedNet>(), mixed_options())),
        optimizer(model.parameters(), options) {}
  void step(const World& world, int64_t number) {
    const at::Device device = world.device();
    model(model.module().batch_on(number * world.size() + world.rank(), device)).backward();
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    model.module().counter.add_(1);  // buffers may change at any time
  }
  RunState run(int64_t step) { return {.model = model, .optimizer = &optimizer, .step = step}; }

  Sharded<MixedNet> model;
  Optimizer optimizer;
};

// What a background save holds is what a save at that moment does, though training went on at once.
template <class Optimizer, class Options>
void check_moment(const Options& options, int64_t staging,
                  const std::function<void(int, const RankBody&)>& run = run_ranks) {
  const TempFolder folder;
  SlowFiles files;
  files.milliseconds = 30;
  for (const int ranks : {1, 3}) {
    const std::string name = std::to_string(ranks);
    run(ranks, [&](World& world) {
      Training<Optimizer, Options> training(world, options);
      for (int64_t step = 0; step < 2; ++step) training.step(world, step);
      save(folder / ("now" + name), training.run(2));
      BackgroundSaver saver(folder / ("later" + name), {}, staging, files);
      saver.save(training.run(2));
      for (int64_t step = 2; step < 5; ++step) training.step(world, step);
      saver.wait();
    });
    if (::testing::Test::IsSkipped()) return;  // there is no GPU
    EXPECT_EQ(
        difference(read_checkpoint(folder / ("later" + name)), read_checkpoint(folder / ("now" + name))), "")
        << ranks << " ranks";
  }
}

TEST(BackgroundSaver, HoldsTheMomentOfTheCall) { check_moment<AdamW>(AdamWOptions(1e-2), INT64_MAX); }
TEST(BackgroundSaver, HoldsItWithoutRoomForCopies) { check_moment<AdamW>(AdamWOptions(1e-2), 0); }
TEST(BackgroundSaver, HoldsItWithRoomForSomeCopies) { check_moment<AdamW>(AdamWOptions(1e-2), 4000); }
TEST(BackgroundSaver, HoldsItWithAStockOptimizer) {
  check_moment<torch::optim::AdamW>(AdamWOptions(1e-2), INT64_MAX);
  check_moment<torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9), 0);
}

TEST(GpuBackgroundSaver, HoldsTheMomentOfTheCall) {
  for (const int64_t staging : {INT64_MAX, int64_t{0}, int64_t{4000}})
    check_moment<AdamW>(AdamWOptions(1e-2), staging, run_on_gpus);
  check_moment<torch::optim::AdamW>(AdamWOptions(1e-2), INT64_MAX, run_on_gpus);
}

TEST(BackgroundSaver, HoldsItThoughOtherMomentsAreLoaded) {
  const TempFolder folder;
  SlowFiles files;
  files.milliseconds = 100;
  run_ranks(2, [&](World& world) {
    Training<AdamW, AdamWOptions> training(world, AdamWOptions(1e-2));
    training.step(world, 0);
    const StateDict other = optimizer_state_dict(training.model, training.optimizer);
    training.step(world, 1);
    save(folder / "now", training.run(2));
    BackgroundSaver saver(folder / "later", {}, /*staging_bytes=*/0, files);
    saver.save(training.run(2));
    load_optimizer_state_dict(training.model, training.optimizer, other);
    saver.wait();
  });
  EXPECT_EQ(difference(read_checkpoint(folder / "later"), read_checkpoint(folder / "now")), "");
}

// An optimizer that writes to its moments before it steps.
struct DecayingAdamW : AdamW {
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (const auto& [param, state] : state())
      static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().mul_(0.5);
    return AdamW::step(std::move(closure));
  }
};

// What `change` does to moments right after save() is not in the checkpoint.
template <class Optimizer>
void check_changed_moments(const std::function<void(Sharded<LayersNet>&, Optimizer&)>& change) {
  for (const int64_t staging : {int64_t{0}, INT64_MAX}) {
    const TempFolder folder;
    SlowFiles files;
    files.milliseconds = 100;
    run_ranks(2, [&](World& world) {
      auto model = shard_layers(world);
      Optimizer optimizer(all_params(model), AdamWOptions(1e-2));
      train_layers(model, optimizer, 0);
      const RunState run{.model = model, .optimizer = &optimizer, .step = 1};
      save(folder / "now", run);
      BackgroundSaver saver(folder / "later", {}, staging, files);
      saver.save(run);
      change(model, optimizer);
      saver.wait();
    });
    EXPECT_EQ(difference(read_checkpoint(folder / "later"), read_checkpoint(folder / "now")), "") << staging;
  }
}

TEST(BackgroundSaver, HoldsMomentsOfIgnoredParameters) {
  check_changed_moments<AdamW>([](Sharded<LayersNet>& model, AdamW& adam) {
    for (at::Tensor* param : {&model.module().image, &model.module().turned, &model.module().plain})
      param->mutable_grad() = torch::ones_like(*param);
    adam.step();  // of these alone: no shard is written
  });
}

TEST(BackgroundSaver, HoldsMomentsOfADerivedOptimizer) {
  check_changed_moments<DecayingAdamW>(
      [](Sharded<LayersNet>& model, DecayingAdamW& adam) { train_layers(model, adam, 1); });
}

TEST(BackgroundSaver, HoldsMomentsThatAProgramWrites) {
  check_changed_moments<AdamW>([](Sharded<LayersNet>&, AdamW& adam) {
    for (const auto& [param, state] : adam.state()) {
      auto& its = static_cast<torch::optim::AdamWParamState&>(*state);
      its.exp_avg().zero_();
      its.exp_avg_sq().data().flatten().fill_(7);
    }
  });
}

TEST(BackgroundSaver, TwoOfOneModelHoldTheSameMoment) {
  const TempFolder folder;
  SlowFiles files;
  files.milliseconds = 100;
  run_ranks(2, [&](World& world) {
    Training<AdamW, AdamWOptions> training(world, AdamWOptions(1e-2));
    training.step(world, 0);
    save(folder / "now", training.run(1));
    BackgroundSaver often(folder / "often", {}, /*staging_bytes=*/0, files);
    BackgroundSaver seldom(folder / "seldom", {}, INT64_MAX);
    often.save(training.run(1));
    seldom.save(training.run(1));
    for (int64_t step = 1; step < 3; ++step) training.step(world, step);
    often.wait();
    seldom.wait();
  });
  for (const char* name : {"often", "seldom"})
    EXPECT_EQ(difference(read_checkpoint(folder / name), read_checkpoint(folder / "now")), "") << name;
}

TEST(BackgroundSaver, ReturnsBeforeTheDiskIsDone) {
  const TempFolder folder;
  SlowFiles files;
  files.milliseconds = 200;
  run_ranks(2, [&](World& world) {
    Training<AdamW, AdamWOptions> training(world, AdamWOptions(1e-2));
    training.step(world, 0);
    BackgroundSaver saver(folder / "run", {}, INT64_MAX, files);
    saver.save(training.run(1));
    require(saver.busy(), "it is not done at once");
    training.step(world, 1);
    require(saver.busy(), "a step need not wait for the disk");
    require(!has_checkpoint(folder / "run"), "nothing is there yet");
    saver.save(training.run(2));  // waits for the one before: two never overlap
    require(saver.stats().seconds_behind_save > 0.2, "back-pressure is told");
    const std::string path = saver.wait();
    require(path == folder / "run/step-00000002", path);
    const BackgroundSaverStats stats = saver.stats();
    require(stats.saved == 2 && stats.failed == 0 && stats.staging_bytes > 0, "statistics");
  });
}

TEST(BackgroundSaver, AFailureIsToldByTheNextCallAndTrainingGoesOn) {
  const TempFolder folder;
  SlowFiles files;
  run_ranks(2, [&](World& world) {
    Training<AdamW, AdamWOptions> training(world, AdamWOptions(1e-2));
    BackgroundSaver saver(folder / "run", {}, INT64_MAX, files);
    training.step(world, 0);
    saver.save(training.run(1));
    saver.wait();
    Comm::create(world).barrier();
    if (world.rank() == 0) files.fail_creates = 1;
    Comm::create(world).barrier();
    saver.save(training.run(2));
    training.step(world, 1);
    std::string words;
    try {
      saver.save(training.run(3));
    } catch (const IoError& error) {
      words = error.what();
      require(error.code() == ENOSPC, "the reason");
    }
    require_words(words, "No space left");
    require(saver.stats().failed == 1 && saver.stats().last_error == words, "statistics");
    training.step(world, 2);
    saver.save(training.run(4));
    require(saver.wait() == folder / "run/step-00000004", "the next one is saved");
    RunState run = training.run(0);
    load(folder / "run/step-00000001", run);
    require(run.step == 1, "the one before is whole");
  });
  EXPECT_THAT(detail::posix_files().list(folder / "run"),
              ::testing::ElementsAre(".lock", "latest", "step-00000001", "step-00000004"));
}

}  // namespace
}  // namespace fsdp::testing
