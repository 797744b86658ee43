// Promise: one line averages or sums a metric over ranks, and a World has a group for the program's own use.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

TEST(WorldSums, NumbersAreTheSameOnEveryRank) {
  for (const int ranks : {1, 2, 3})
    run_both(ranks, [&](World& world) {
      const double sum = ranks * (ranks + 1) / 2.0;
      require(world.sum(world.rank() + 1.0) == sum, "sum()");
      require(std::abs(world.mean(world.rank() + 1.0) - sum / ranks) < 1e-15, "mean()");
    });
}

TEST(WorldSums, TensorsKeepShapeAndDtypeAndHaveNoGraph) {
  run_both(2, [](World& world) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
      const Tensor loss = torch::full({2, 3}, world.rank() * 2.0, dtype).requires_grad_();
      const Tensor mean = world.mean(loss * 1);
      require(mean.equal(torch::ones({2, 3}, dtype)), "mean of the ranks' values");
      require(mean.dtype() == dtype && !mean.requires_grad(), "as the input, without a graph");
      require(loss.mean().item<double>() == world.rank() * 2.0, "the input is left alone");
    }
    const Tensor columns = torch::arange(6).view({2, 3}).t();  // not contiguous
    require(world.sum(columns).equal(columns * 2), "integers, in any memory order");
    require(world.sum(torch::full({2}, 3, torch::kInt32)).equal(torch::full({2}, 6, torch::kInt32)), "int32");
    require_words(refusal([&] { world.mean(torch::arange(3)); }), "call .to(torch::kFloat64) first");
    require_words(refusal([&] { world.sum(Tensor()); }), "undefined tensor");
    require_words(refusal([&] { world.sum(torch::ones({1}, torch::kBool)); }), "cannot hold a count");
  });
}

TEST(WorldSums, TheGroupIsMadeOnce) {
  run_both(3, [](World& world) {
    const Tensor whole = torch::zeros({3});
    Comm comm = world.comm();
    comm.all_gather(whole, torch::full({1}, world.rank() * 1.0), "ranks").wait();
    require(whole.equal(torch::arange(3).to(torch::kFloat32)), "all ranks, in order");
    world.comm().barrier("once more");
    int64_t calls = 0;
    for (const OpStats& one : world.comm().stats()) calls += one.count;
    require(calls == 2, "one group counts both: " + std::to_string(calls));
  });
}

// In the middle of a training loop, beside a sharded model.
TEST(WorldSums, WorkBetweenForwardAndBackward) {
  run_both(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = loss_of(model(net_batch(step * 2 + world.rank())));
      const double mean = world.mean(loss.item<double>());
      loss.backward();
      require(std::abs(mean - world.mean(loss).item<double>()) < 1e-6, "the same by a number and a tensor");
      model.zero_grad();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
