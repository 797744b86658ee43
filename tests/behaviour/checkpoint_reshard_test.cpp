// Promise: what was saved on any number of ranks is loaded on any other, bit for bit, and training goes on.
#include <gtest/gtest.h>

#include "behaviour/checkpoint_net.h"

namespace fsdp::testing {
namespace {

struct Trained {
  Trained(const World& world, const ShardOptions& options, uint64_t seed = 3)
      : model(fully_shard(world, std::make_shared<MixedNet>(seed), options)),
        optimizer(model.parameters(), AdamWOptions(1e-2)) {}

  // The same batches whatever the number of ranks: 8 a step.
  double step(const World& world, int64_t number) {
    double loss = 0;
    const int each = 8 / world.size();
    for (int i = 0; i < each; ++i) {
      const at::Tensor one = model(model.module().batch(number * 8 + i * world.size() + world.rank()));
      (one / each).backward();
      loss += one.item<double>();
    }
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  }
  RunState run(int64_t step) { return {.model = model, .optimizer = &optimizer, .step = step}; }

  Sharded<MixedNet> model;
  AdamW optimizer;
};

TEST(CheckpointReshard, EveryPairOfWorldSizesIsBitExact) {
  const TempFolder folder;
  std::map<int, std::map<std::string, at::Tensor>> saved;
  for (int ranks = 1; ranks <= 8; ++ranks)
    run_ranks(ranks, [&](World& world) {
      Trained trained(world, mixed_options());
      for (int64_t step = 0; step < 2; ++step) trained.step(world, step);
      save(folder / ("from" + std::to_string(ranks)), trained.run(2));
      const auto state = whole_state(trained.model);
      if (world.rank() == 0) saved[ranks] = state;
    });
  for (int to = 1; to <= 8; ++to)
    for (int from = 1; from <= 8; ++from) {
      const std::string source = folder / ("from" + std::to_string(from)), again = folder / "again";
      SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
      run_ranks(to, [&](World& world) {
        Trained other(world, mixed_options(), /*seed=*/99);
        RunState run = other.run(0);
        const LoadReport report = load(source, run);
        require(run.step == 2 && report.ranks == from, "step or ranks");
        const std::string wrong = difference(whole_state(other.model), saved[from]);
        require(wrong.empty(), wrong);
        save(again, run);
      });
      // Moments and steps went through the optimizer's memory.
      EXPECT_EQ(difference(read_checkpoint(again), read_checkpoint(source)), "");
      std::filesystem::remove_all(again);
    }
}

TEST(CheckpointReshard, TrainingGoesOnAsIfNothingHadHappened) {
  const TempFolder folder;
  std::vector<double> whole;
  run_ranks(1, [&](World& world) {
    Trained trained(world, mixed_options());
    for (int64_t step = 0; step < 6; ++step) whole.push_back(trained.step(world, step));
  });
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{2, 4}, {4, 2}, {1, 8}, {8, 1}, {2, 1}}) {
    SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
    std::filesystem::remove_all(folder / "run");
    std::mutex mutex;
    std::vector<double> losses(6, 0.0);
    const auto train = [&](Trained& trained, World& world, int64_t first, int64_t last) {
      for (int64_t step = first; step < last; ++step) {
        const double loss = trained.step(world, step);
        const std::lock_guard lock(mutex);
        losses[static_cast<size_t>(step)] += loss;
      }
    };
    run_ranks(from, [&](World& world) {
      Trained trained(world, mixed_options());
      train(trained, world, 0, 3);
      save(folder / "run", trained.run(3));
    });
    run_ranks(to, [&](World& world) {
      Trained trained(world, mixed_options(), 99);
      RunState run = trained.run(0);
      load(folder / "run", run);
      train(trained, world, run.step, 6);
    });
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(losses[i], whole[i], 1e-4 * whole[i]) << "step " << i;
  }
}

TEST(CheckpointReshard, ReproducibleRunsGoOnWithTheSameBits) {
  const TempFolder folder;
  ShardOptions options = mixed_options();
  options.reproducible = Reproducible{.microbatches = 8, .seed = 5};
  const auto train = [&](Sharded<Learner>& model, AdamW& optimizer, World& world, int64_t first,
                         int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      for (int i = world.rank(); i < 8; i += world.size())
        model(model.module().batch(step * 8 + i)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  const auto shard = [&](World& world) {
    ShardOptions own = options;
    own.ignored = {};
    return fully_shard(world, make_learner("gpt2"), own);
  };
  uint64_t wanted = 0;
  run_ranks(1, [&](World& world) {
    auto model = shard(world);
    AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
    train(model, optimizer, world, 0, 6);
    wanted = model.state_hash();
  });
  for (const int from : {1, 2, 4, 8})
    for (const int to : {1, 2, 4, 8}) {
      SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
      std::filesystem::remove_all(folder / "run");
      run_ranks(from, [&](World& world) {
        auto model = shard(world);
        AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
        train(model, optimizer, world, 0, 3);
        save(folder / "run", {.model = model, .optimizer = &optimizer, .step = 3});
      });
      run_ranks(to, [&](World& world) {
        auto model = shard(world);
        AdamW optimizer(model.parameters(), AdamWOptions(1.0));
        RunState run{.model = model, .optimizer = &optimizer};
        load(folder / "run", run);
        require(model.step() == 3, "the step is " + std::to_string(model.step()));
        train(model, optimizer, world, run.step, 6);
        require(model.state_hash() == wanted, "another hash");
      });
    }
}

struct StrategyCase {
  const char* name;
  ShardOptions options;
};

std::vector<StrategyCase> strategies() {
  std::vector<StrategyCase> all;
  const auto with = [&](const char* name, auto change) {
    ShardOptions options = mixed_options();
    change(options);
    all.push_back({name, options});
  };
  with("full_shard", [](ShardOptions&) {});
  with("one unit", [](ShardOptions& o) { o.wrap = whole_model(); });
  with("no_shard", [](ShardOptions& o) { o.strategy = Strategy::no_shard; });
  with("replicate_below", [](ShardOptions& o) { o.replicate_below = 60; });
  with("slots", [](ShardOptions& o) { o.share_shards = false; });
  with("shard_grad_op", [](ShardOptions& o) { o.strategy = Strategy::shard_grad_op; });
  with("hybrid", [](ShardOptions& o) { o.strategy = Strategy::hybrid_shard, o.shard_size = 2; });
  return all;
}

TEST(CheckpointReshard, FromEveryStrategyToEveryOther) {
  const TempFolder folder;
  for (const StrategyCase& from : strategies()) {
    const std::string source = folder / from.name;
    run_ranks(4, [&](World& world) {
      Trained trained(world, from.options);
      for (int64_t step = 0; step < 2; ++step) trained.step(world, step);
      save(source, trained.run(2));
    });
    const auto wanted = read_checkpoint(source);
    for (const StrategyCase& to : strategies()) {
      SCOPED_TRACE(std::string(from.name) + " -> " + to.name);
      run_ranks(to.options.shard_size == 2 ? 6 : 3, [&](World& world) {
        Trained other(world, to.options, 99);
        other.step(world, 0);  // moments of its own, shards that others read
        RunState run = other.run(0);
        load(source, run);
        save(folder / "again", run);
      });
      EXPECT_EQ(difference(read_checkpoint(folder / "again"), wanted), "");
      std::filesystem::remove_all(folder / "again");
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
