// Promise: a backward that fails on one rank ends the others' at once, in the words of its error. One that
// fails on all ranks leaves the model usable.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kWords = "its backward threw: sample 17 is corrupt";

ShardOptions patient() {
  ShardOptions options = sharded_by(by_type<BlockImpl>());
  options.comm.timeout = milliseconds(20000);
  return options;
}

Tensor data_of(const World& world) { return torch::ones({4, 6}) * (world.rank() + 1); }

void train(const World& world, Sharded<NetImpl>& model, int steps) {
  for (int s = 0; s < steps; ++s) loss_of(model(data_of(world))).backward();
  model.zero_grad();
}

// A loss whose backward throws between the blocks where `throws`.
Tensor breaking(const World& world, Sharded<NetImpl>& model, bool throws) {
  return loss_of(model.run([&](NetImpl& net) {
    const Tensor h = net.blocks[0](net.in(data_of(world)));
    if (throws) h.register_hook([](const Tensor&) { throw std::runtime_error("sample 17 is corrupt"); });
    return net.out(net.blocks[2](net.blocks[1](h)));
  }));
}

// The CommError that `does` meets, as the model knows it.
CommError::Details fault_of(const ShardedModel& model, const std::function<void()>& does) {
  try {
    does();
  } catch (const std::exception&) {
    try {
      std::rethrow_exception(model.last_error());
    } catch (const CommError& error) {
      return error.details();
    }
  }
  throw std::runtime_error("no CommError was met");
}

void require_told(const CommError::Details& met, int culprit) {
  require(met.fault == CommFault::peer_left, std::string("the fault is ") + to_string(met.fault));
  require(met.culprit == culprit, "the culprit is " + std::to_string(met.culprit) + ": " + met.reason);
  require_words(met.reason, kWords);
}

// What the rank does after its error: it ends when `peers` have met theirs.
using Afterwards = std::function<void(World&, Sharded<NetImpl>&, const std::atomic<int>& peers)>;

// Rank 1 fails in a backward, after 0 steps (on demand) or 3 (planned).
void expect_told(const Afterwards& afterwards) {
  for (const int steps : {0, 3}) {
    std::atomic<int> told = 0;
    run_ranks(3, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), patient());
      train(world, model, steps);
      const Tensor loss = breaking(world, model, world.rank() == 1);
      const auto start = Clock::now();
      if (world.rank() == 1) {
        EXPECT_THROW(loss.backward(), std::runtime_error);
        return afterwards(world, model, told);
      }
      const auto met = fault_of(model, [&] { loss.backward(); });
      ++told;
      require_told(met, 1);
      require(Clock::now() - start < milliseconds(10000), "at once");
    });
  }
}

void wait_for(const std::atomic<int>& peers) {
  const auto start = Clock::now();
  while (peers < 2 && Clock::now() - start < milliseconds(30000))
    std::this_thread::sleep_for(milliseconds(1));
}

TEST(FailedBackward, IsToldToPeersOfARankThatKeepsItsHandle) {
  expect_told([](World& world, Sharded<NetImpl>& model, const std::atomic<int>& peers) {
    wait_for(peers);
    require_told(fault_of(model, [&] { model(data_of(world)); }), 1);
  });
}

TEST(FailedBackward, IsToldToPeersOfARankThatLeaves) {
  expect_told([](World&, Sharded<NetImpl>&, const std::atomic<int>&) {});
}

TEST(FailedBackward, IsToldToPeersOfARankThatGoesOn) {
  expect_told([](World& world, Sharded<NetImpl>& model, const std::atomic<int>& peers) {
    require_told(fault_of(model, [&] { train(world, model, 1); }), 1);
    wait_for(peers);
  });
}

TEST(FailedBackward, IsToldByRunLocal) {
  std::string told;
  try {
    run_processes(3, [](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), patient());
      train(world, model, 3);
      breaking(world, model, world.rank() == 2).backward();
    });
  } catch (const std::exception& error) {
    told = error.what();
  }
  EXPECT_NE(told.find("rank 2 of 3 failed"), std::string::npos) << told;
  EXPECT_NE(told.find("sample 17 is corrupt"), std::string::npos) << told;
}

// Ranks fail, and go on, at different times.
TEST(FailedBackward, OfAllRanksLeavesTheModelUsable) {
  for (const int late : {0, 1, 2})
    run_ranks(3, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), patient());
      train(world, model, 3);
      for (int round = 0; round < 2; ++round) {
        const Tensor loss = breaking(world, model, true);
        if (world.rank() == late) std::this_thread::sleep_for(milliseconds(300));
        EXPECT_THROW(loss.backward(), std::runtime_error);
        if (world.rank() == (late + 1) % 3) std::this_thread::sleep_for(milliseconds(300));
        model.zero_grad();
        train(world, model, 2);
      }
    });
}

// Nothing of the backward needs other ranks.
TEST(FailedBackward, InNoSyncOfWholeUnitsIsTheRanksOwn) {
  run_ranks(2, [&](World& world) {
    ShardOptions options = patient();
    options.strategy = Strategy::no_shard;
    auto model = fully_shard(world, make_seeded(make_net), options);
    train(world, model, 2);
    {
      const auto scope = model.no_sync();
      const Tensor loss = breaking(world, model, world.rank() == 1);
      if (world.rank() == 1) {
        EXPECT_THROW(loss.backward(), std::runtime_error);
        std::this_thread::sleep_for(milliseconds(300));
      } else {
        loss.backward();
      }
    }
    train(world, model, 1);
  });
}

// The ranks have done all that they do together.
TEST(FailedBackward, ByAListenerAtItsEndIsTheRanksOwn) {
  run_ranks(2, [&](World& world) {
    ShardOptions options = patient();
    options.check_gradients = true;  // they are told at the end
    auto model = fully_shard(world, make_seeded(make_net), options);
    train(world, model, 2);
    bool throws = world.rank() == 1;
    model.on_gradient([&](const std::string&, Tensor&) {
      if (std::exchange(throws, false)) throw std::runtime_error("of the listener");
    });
    const Tensor loss = loss_of(model(data_of(world)));
    if (world.rank() == 1) {
      EXPECT_THROW(loss.backward(), std::runtime_error);
      std::this_thread::sleep_for(milliseconds(300));
    } else {
      loss.backward();
    }
    train(world, model, 2);
  });
}

}  // namespace
}  // namespace fsdp::testing
