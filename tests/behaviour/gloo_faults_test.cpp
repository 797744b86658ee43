// Promise: between hosts too, a dead, silent or diverging rank ends every collective in an error that names
// it. The hosts are one machine here; tests/hosts has real links.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <csignal>
#include <thread>

#include "comm/gloo/gloo.h"
#include "launch/world_state.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;

constexpr const char* kHosts = "aabb";  // by rank

// Gives the ranks of this world other hosts: one letter per rank.
void place_on_hosts(World& world) {
  for (Peer& peer : world.state().peers) {
    peer.host_id += kHosts[peer.rank];
    peer.hostname = std::string("node-") + kHosts[peer.rank];
  }
}

#define SKIP_WITHOUT_GLOO \
  if (!detail::gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev"

// Runs `body` on four ranks of two hosts; the body of each but `victim` must throw a CommError that `check`
// accepts.
void expect_gloo_fault(int victim, milliseconds timeout, const std::function<void(Comm&)>& body,
                       const std::function<void(const CommError&)>& check) {
  auto ranks = fork_ranks(4, [&](World& world) {
    place_on_hosts(world);
    auto comm = Comm::create(world, {.timeout = timeout});
    require(std::string(comm.backend_name()) == "gloo", "CPU ranks of two hosts get gloo");
    comm.barrier();
    try {
      body(comm);
    } catch (const CommError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return check(error);
    }
    if (world.rank() != victim) throw std::runtime_error("no fault was seen");
  });
  ranks->wait_all(milliseconds(30000));
  for (int r = 0; r < 4; ++r) {
    if (r == victim) continue;
    EXPECT_EQ(ranks->outcome(r).exit_code, 0) << "rank " << r << ": " << ranks->outcome(r).error;
  }
}

void sum_for_ever(Comm& comm, int victim, const std::function<void()>& at_twenty) {
  const auto tensor = at::ones({1 << 16});
  for (int i = 0;; ++i) {
    if (i == 20 && comm.rank() == victim) return at_twenty();
    comm.all_reduce(tensor, ReduceOp::average, "t").wait();
  }
}

void require_fault(const CommError& error, CommFault fault, int culprit) {
  require(error.details().fault == fault, std::string("another fault: ") + error.what());
  require(error.details().culprit == culprit, std::string("another rank: ") + error.what());
}

TEST(GlooFaults, KilledRankIsNamedOnBothHosts) {
  SKIP_WITHOUT_GLOO;
  for (const int victim : {0, 3})
    expect_gloo_fault(
        victim, milliseconds(60000),
        [&](Comm& comm) { sum_for_ever(comm, victim, [] { ::raise(SIGKILL); }); },
        [&](const CommError& error) {
          require_fault(error, CommFault::peer_died, victim);
          require(error.details().elapsed < milliseconds(5000), "soon");
        });
}

TEST(GlooFaults, RankThatLeavesIsNamedWithItsReason) {
  SKIP_WITHOUT_GLOO;
  expect_gloo_fault(
      2, milliseconds(60000),
      [](Comm& comm) {
        sum_for_ever(comm, 2, [&] { comm.leaving("its call of the model threw: sample 17 is corrupt"); });
      },
      [](const CommError& error) {
        require_fault(error, CommFault::peer_left, 2);
        require_words(error.what(), "sample 17 is corrupt");
      });
}

TEST(GlooFaults, SilentRankIsNamedAfterTheTimeout) {
  SKIP_WITHOUT_GLOO;
  expect_gloo_fault(
      1, milliseconds(1500),
      [](Comm& comm) { sum_for_ever(comm, 1, [] { std::this_thread::sleep_for(milliseconds(8000)); }); },
      [](const CommError& error) {
        require_fault(error, CommFault::timeout, 1);
        require(error.details().elapsed < milliseconds(4000), "soon after the timeout");
      });
}

TEST(GlooFaults, DivergingRanksAreToldWhatEachIssuedBeforeTheTimeout) {
  SKIP_WITHOUT_GLOO;
  expect_gloo_fault(
      -1, milliseconds(60000),
      [](Comm& comm) {
        if (comm.rank() == 2)
          comm.all_gather(at::ones({400}), at::ones({100}), "head").wait();
        else
          comm.all_reduce(at::ones({1 << 16}), ReduceOp::sum, "block.3").wait();
      },
      [](const CommError& error) {
        require(error.details().fault == CommFault::mismatch, error.what());
        require_words(error.what(), "all_gather 'head'");
        require_words(error.what(), "all_reduce 'block.3'");
      });
}

TEST(GlooFaults, AbortReachesEveryone) {
  SKIP_WITHOUT_GLOO;
  expect_gloo_fault(
      -1, milliseconds(60000),
      [](Comm& comm) {
        if (comm.rank() == 3) comm.abort("loss is not finite");
        comm.all_reduce(at::ones({1 << 16}), ReduceOp::sum, "t").wait();
      },
      [](const CommError& error) {
        require_fault(error, CommFault::aborted, 3);
        require_words(error.what(), "loss is not finite");
      });
}

// A rank that waits for a message from a rank that is alive, but waits itself, hears of the fault.
TEST(GlooFaults, RanksThatNeverTalkToTheDeadOneAreTold) {
  SKIP_WITHOUT_GLOO;
  expect_gloo_fault(
      3, milliseconds(60000),
      [](Comm& comm) {
        auto tensor = at::ones({100});
        if (comm.rank() == 3) {
          std::this_thread::sleep_for(milliseconds(300));
          ::raise(SIGKILL);
        }
        if (comm.rank() == 2) comm.recv(tensor, 3, "never sent").wait();
        comm.recv(tensor, 2, "never sent").wait();
      },
      [](const CommError& error) { require_fault(error, CommFault::peer_died, 3); });
}

TEST(Gloo, ConnectsHostsAndLeavesSharedMemoryInside) {
  SKIP_WITHOUT_GLOO;
  run_processes(4, [](World& world) {
    place_on_hosts(world);
    auto all = Comm::create(world);
    auto row = all.split(world.rank() / 2);
    auto column = all.split(world.rank() % 2);
    require(std::string(all.backend_name()) == "gloo", "the world");
    require(std::string(row.backend_name()) == "shm", "the ranks of a host");
    require(std::string(column.backend_name()) == "gloo", "ranks of two hosts");
    require(row.shares_memory() && !column.shares_memory(), "memory is shared inside a host only");
    const auto tensor = at::full({1 << 16}, world.rank(), at::kFloat);
    row.all_reduce(tensor, ReduceOp::sum, "row").wait();
    column.all_reduce(tensor, ReduceOp::sum, "column").wait();
    require(tensor.eq(6).all().item<bool>(), "sums of rows add up");
  });
}

}  // namespace
}  // namespace fsdp::testing
