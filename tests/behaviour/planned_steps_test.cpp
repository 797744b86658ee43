// Promise: a planned step takes no memory but gradient shards, in one allocation each, and the host never
// waits for the device.
#include <gtest/gtest.h>

#include "behaviour/small_net.h"
#include "behaviour/toy_device.h"
#include "support/gloo.h"

namespace fsdp::testing {
namespace {

class OtherDevicePlanned : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  }
};

ToyCounts operator-(const ToyCounts& a, const ToyCounts& b) {
  return {a.allocations - b.allocations, a.host_waits - b.host_waits};
}

// What our own operators did in the last of several steps.
ToyCounts last_step(const World& world, const ShardOptions& options, bool drops_gradients) {
  auto model = fully_shard(world, make_net(), options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  ToyCounts used;
  for (int step = 0; step < 5; ++step) {
    const ToyCounts before = toy_counts();
    loss_of(model(torch::ones({4, 6}) * (world.rank() + step + 1))).backward();
    used = toy_counts() - before;
    optimizer.step();
    optimizer.zero_grad(drops_gradients);
  }
  return used;
}

TEST_F(OtherDevicePlanned, StepsAllocateGradientShardsOnly) {
  on_toy_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.comm = kToyComm;
    constexpr int64_t kUnits = 4;
    const ToyCounts dropped = last_step(world, options, true);
    // Besides: what ranks tell each other of used parameters, one small tensor.
    require(dropped.allocations <= kUnits + 1, std::to_string(dropped.allocations) + " allocations");
    require(dropped.host_waits == 0, std::to_string(dropped.host_waits) + " waits of the host");
    const ToyCounts kept = last_step(world, options, false);
    require(kept.host_waits == 0, std::to_string(kept.host_waits) + " waits of the host");
  });
}

TEST_F(OtherDevicePlanned, TheHostDoesNotWaitWhateverThePolicy) {
  on_toy_ranks(2, [](World& world) {
    for (const auto policy : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
        ShardOptions options = sharded_by(by_type<BlockImpl>());
        options.comm = kToyComm;
        options.backward_prefetch = policy;
        options.strategy = strategy;
        options.precision = bf16();
        const ToyCounts used = last_step(world, options, true);
        require(used.host_waits == 0, std::to_string(used.host_waits) + " waits of the host");
      }
  });
}

}  // namespace
}  // namespace fsdp::testing
