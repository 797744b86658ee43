// Promise: ranks find out when what they hold copies of is no longer the same, and buffers become the same
// when asked for.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kEvery = 3;

// Trains until `steps` or an error, whose text comes back; `faulty` changes one value of its own after
// step 1.
std::string train_with_a_fault(World& world, ShardOptions options, int steps, int faulty = 3) {
  options.check_replicas_every = kEvery;
  auto model = fully_shard(world, make_learner("gpt2"), options);
  torch::optim::SGD optimizer(model.parameters(), 0.05);
  for (int step = 0; step < steps; ++step) {
    try {
      model(model.module().batch(4 * step + world.rank())).backward();
    } catch (const std::exception& error) {
      return "step " + std::to_string(step) + ": " + error.what();
    }
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1 && world.rank() == faulty) {
      at::NoGradGuard no_grad;
      model.flat_parameters().back().narrow(0, 0, 1).add_(1e-3);
    }
  }
  return "";
}

void expect_found(const std::string& told, const std::string& ranks) {
  require(told.rfind("step 2: ", 0) == 0, "not in step 2: " + told);
  require(told.find(ranks) != std::string::npos, told);
}

TEST(Copies, WholeParametersThatDifferAreFound) {
  run_ranks(4, [](World& world) {
    expect_found(train_with_a_fault(world, {.strategy = Strategy::no_shard}, 5),
                 "ranks 0, 1, 2 agree and differ from rank 3,");
    expect_found(train_with_a_fault(world, {.strategy = Strategy::no_shard}, 5, /*faulty=*/0),
                 "ranks 1, 2, 3 agree and differ from rank 0,");
    expect_found(train_with_a_fault(world, {.replicate_below = 40}, 5), "unit 'replicated': ranks 0, 1, 2");
  });
}

TEST(Copies, RowsThatDifferAreFoundByAllRanks) {
  run_ranks(4, [](World& world) {
    expect_found(train_with_a_fault(world, {.strategy = Strategy::hybrid_shard, .shard_size = 2}, 5),
                 "rank 1 differs from rank 3,");
  });
}

TEST(Copies, WithoutCopiesOrFaultsNothingIsSaid) {
  run_ranks(4, [](World& world) {
    const auto sharded = train_with_a_fault(world, {}, 7);  // one copy: nothing to compare with
    require(sharded.empty(), sharded);
    auto model =
        fully_shard(world, make_learner("gpt2"), {.strategy = Strategy::no_shard, .check_replicas_every = 1});
    train_sharded(model, world, 6, Optim::fused_adamw);
  });
}

TEST(Copies, ANegativePeriodIsRefused) {
  run_ranks(1, [](World& world) {
    try {
      auto model = fully_shard(world, make_learner("mlp"), {.check_replicas_every = -1});
    } catch (const c10::Error& error) {
      return require(std::string(error.what()).find("check_replicas_every -1") != std::string::npos,
                     error.what());
    }
    require(false, "-1 was taken");
  });
}

// A buffer with the rank's number in it, and one that counts.
struct WithBuffersImpl : torch::nn::Module {
  explicit WithBuffersImpl(int rank) {
    weight = register_parameter("weight", torch::ones({4}));
    mean = register_buffer("mean", torch::full({2, 3}, static_cast<float>(rank)));
    half = register_buffer("half", torch::full({5}, rank, at::kBFloat16));
    count = register_buffer("count", torch::full({}, rank, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight, mean, half, count;
};
TORCH_MODULE(WithBuffers);

TEST(Copies, BuffersAreBroadcastOrAveragedWhenAskedFor) {
  run_ranks(4, [](World& world) {
    const auto synced = [&](BufferSync how) {
      auto model = fully_shard(world, WithBuffers(world.rank()), {.sync_module_states = false});
      model.sync_buffers(how);
      return model;
    };
    auto first = synced(BufferSync::broadcast);
    require(first.module().mean.eq(0).all().item<bool>() && first.module().count.item<int>() == 0,
            "broadcast");
    auto average = synced(BufferSync::average);
    require(average.module().mean.eq(1.5).all().item<bool>(), "average");
    require(average.module().half.eq(1.5).all().item<bool>(), "average in bf16");
    require(average.module().count.item<int>() == 0, "whole numbers are rank 0's");
  });
}

}  // namespace
}  // namespace fsdp::testing
