// Promise: nobody sees a slot change while holding it, whatever is in flight, and memory lives as long as it
// is used.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <thread>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int64_t kPart = 1000;

at::Tensor filled(double value) { return at::full({kPart}, value, at::kFloat); }

bool all_are(const at::Tensor& tensor, double value) { return tensor.eq(value).all().item<bool>(); }

TEST(Slots, AreHeldWhileAnotherRankIsTwoGathersAhead) {
  run_both(2, [](World& world) {
    auto comm = Comm::create(world);
    auto slot = comm.allocate(MemoryUse::gather, 2 * kPart, at::kFloat);
    comm.all_gather(slot, filled(1), "1").wait();
    if (world.rank() == 1) {
      for (int i = 0; i < 20; ++i) {
        require(all_are(slot, 1), "the slot this rank holds does not change");
        std::this_thread::sleep_for(milliseconds(2));
      }
    }
    auto second = comm.all_gather(slot, filled(2), "2");
    auto third = comm.all_gather(slot, filled(3), "3");
    second.wait();
    third.wait();
    require(all_are(slot, 3), "the last gather wins");
  });
}

TEST(Slots, ThatOverlapMayBeGatheredWithoutWaitingInBetween) {
  run_both(2, [](World& world) {
    auto comm = Comm::create(world);
    auto arena = comm.allocate(MemoryUse::gather, 4 * kPart, at::kFloat);
    auto busy = at::ones({1 << 19});
    for (int i = 0; i < 30; ++i) {
      auto sum = comm.all_reduce(busy, ReduceOp::average, "busy");
      auto first = comm.all_gather(arena.narrow(0, 0, 2 * kPart), filled(10 + i), "first");
      auto second = comm.all_gather(arena.narrow(0, kPart, 2 * kPart), filled(100 + i), "second");
      sum.wait();
      second.wait();
      require(all_are(arena.narrow(0, kPart, 2 * kPart), 100 + i),
              "the second gather is whole in round " + std::to_string(i));
    }
  });
}

// A claim may wait for a rank that itself waits for an operation this one has issued and not yet moved.
TEST(Slots, AreClaimedWhileOperationsMoveOn) {
  run_both(2, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    auto home = comm.allocate(MemoryUse::gather, 2 * kPart, at::kFloat);
    auto own = home.narrow(0, comm.rank() * kPart, kPart);
    auto big = at::ones({1 << 22});  // more than is published when it is issued
    comm.all_gather(home, own, "in place").wait();
    auto sum = comm.all_reduce(big, ReduceOp::sum, "big");
    if (world.rank() == 1) {
      sum.wait();
      comm.release(home);
    }
    comm.claim(home);
    sum.wait();
    require(all_are(big, 2), "the sum is there");
  });
}

TEST(Slots, OfAllRanksMustBeTheSameMemory) {
  const auto faults =
      [](const std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b, int rank)>& choose) {
        run_ranks(2, [&](World& world) {
          auto comm = Comm::create(world);
          auto a = comm.allocate(MemoryUse::gather, 4 * kPart, at::kFloat);
          auto b = comm.allocate(MemoryUse::gather, 4 * kPart, at::kFloat);
          try {
            comm.all_gather(choose(a, b, world.rank()), filled(1), "u").wait();
            ADD_FAILURE() << "different memory was accepted";
          } catch (const CommError& error) {
            EXPECT_EQ(error.details().fault, CommFault::mismatch) << error.what();
          }
        });
      };
  faults([](const auto& a, const auto&, int rank) {
    return rank == 0 ? a.narrow(0, 0, 2 * kPart) : at::empty({2 * kPart});
  });
  faults([](const auto& a, const auto& b, int rank) { return (rank == 0 ? a : b).narrow(0, 0, 2 * kPart); });
  faults([](const auto& a, const auto&, int rank) { return a.narrow(0, rank * kPart, 2 * kPart); });
}

TEST(Slots, HeldByARankThatLeavesAreFreeForTheOthers) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    auto slot = comm.allocate(MemoryUse::gather, 2 * kPart, at::kFloat);
    comm.all_gather(slot, filled(1), "1").wait();
    if (world.rank() == 1) return;
    const auto start = std::chrono::steady_clock::now();
    try {
      comm.all_gather(slot, filled(2), "2").wait();
      ADD_FAILURE() << "the other rank is gone";
    } catch (const CommError& error) {
      EXPECT_EQ(error.details().fault, CommFault::peer_left) << error.what();
      EXPECT_EQ(error.details().culprit, 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000)) << "at once, not at the timeout";
  });
}

TEST(Slots, MayBeDroppedOnAnyThread) {
  run_processes(2, [](World& world) {
    auto comm = Comm::create(world);
    for (int i = 0; i < 300; ++i) {
      auto slot = comm.allocate(MemoryUse::gather, 2 * kPart, at::kFloat);
      comm.all_gather(slot, filled(i), "u").wait();
      require(all_are(slot, i), "round " + std::to_string(i));
      std::thread([dropped = std::move(slot)]() mutable { dropped.reset(); }).detach();
    }
    comm.barrier();
  });
}

TEST(Slots, OfAFailedGroupAreNotTouchedAgain) {
  run_processes(2, [](World& world) {
    auto comm = Comm::create(world);
    if (world.rank() == 1) return std::this_thread::sleep_for(milliseconds(400));
    auto first = std::make_unique<at::Tensor>(at::ones({1 << 22}));
    auto second = at::ones({64});
    auto a = comm.all_reduce(*first, ReduceOp::sum, "first");
    auto b = comm.all_reduce(second, ReduceOp::sum, "second");
    bool failed = false;
    try {
      a.wait(milliseconds(50));
    } catch (const CommError&) {
      failed = true;
    }
    first.reset();
    require(failed, "the peer does not come");
    try {
      b.wait();
      require(false, "the group has failed");
    } catch (const CommError& error) {
      require(error.details().culprit == 1, "the same culprit");
    }
  });
}

TEST(Slots, ImpossibleSizesAndTimeoutsAreRefused) {
  run_ranks(1, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds::max()});
    EXPECT_THROW(comm.allocate(MemoryUse::gather, int64_t{1} << 61, at::kDouble), c10::Error);
    EXPECT_THROW(comm.allocate(MemoryUse::gather, -1, at::kDouble), c10::Error);
    comm.barrier();
    EXPECT_THROW(Comm::create(world, {.timeout = milliseconds(0)}), c10::Error);
    EXPECT_THROW(comm.all_reduce(at::ones({4}), ReduceOp::sum, "x").wait(milliseconds(0)), c10::Error);
  });
}

TEST(Slots, ReleaseWaitsForNothingButItsOwnGather) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    auto arena = comm.allocate(MemoryUse::gather, 4 * kPart, at::kFloat);
    auto now = arena.narrow(0, 0, 2 * kPart);
    comm.all_gather(now, filled(1), "now").wait();
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
    auto next = comm.all_gather(arena.narrow(0, 2 * kPart, 2 * kPart), filled(2), "prefetched");
    const auto start = std::chrono::steady_clock::now();
    comm.release(now);
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(150))
        << "the prefetch is still on its way";
    next.wait();
  });
}

}  // namespace
}  // namespace fsdp::testing
