// Promise: on the GPU too, a dead, silent or diverging rank ends in an error that names it. Needs a GPU.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kNcclRanks = 3;
constexpr int kVictim = 1;

// Runs `body` on ranks that share one GPU; each survivor's body must throw a CommError that `check` accepts.
void expect_fault(milliseconds timeout, const std::function<void(Comm&)>& body,
                  const std::function<void(const CommError&)>& check) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  auto ranks = fork_ranks(
      kNcclRanks,
      [&](World& world) {
        ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
        auto comm = Comm::create(world, {.timeout = timeout});
        comm.barrier();
        try {
          body(comm);
        } catch (const CommError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          return check(error);
        }
        if (world.rank() != kVictim) throw std::runtime_error("no fault was seen");
      },
      c10::Device(c10::kCUDA));
  ranks->wait_all(milliseconds(15000));
  for (int r = 0; r < kNcclRanks; ++r) {
    if (r == kVictim) continue;
    EXPECT_EQ(ranks->outcome(r).exit_code, 0) << "rank " << r << ": " << ranks->outcome(r).error;
  }
}

at::Tensor ones() { return at::ones({1 << 16}, at::TensorOptions().device(at::kCUDA)); }

TEST(NcclFaults, KilledRankIsNamed) {
  expect_fault(
      milliseconds(30000),
      [](Comm& comm) {
        const auto tensor = ones();
        for (int i = 0;; ++i) {
          if (i == 20 && comm.rank() == kVictim) ::raise(SIGKILL);
          comm.all_reduce(tensor, ReduceOp::average, "t").wait(milliseconds(30000));
        }
      },
      [](const CommError& error) {
        require(error.details().fault == CommFault::peer_died, "the fault is a death");
        require(error.details().culprit == kVictim, "the right rank is named");
        require(error.details().elapsed < milliseconds(5000), "soon");
      });
}

// An index out of range ends all work of its device. The rank must say so, and not end by abort().
TEST(NcclFaults, AnErrorOfTheDeviceIsTold) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  auto ranks = fork_ranks(
      kNcclRanks,
      [](World& world) {
        ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
        auto comm = Comm::create(world, {.timeout = milliseconds(30000)});
        const at::Tensor tensor = ones();
        try {
          for (int i = 0;; ++i) {
            if (i == 20 && comm.rank() == kVictim)
              tensor.index({at::full({1}, int64_t{1} << 40, tensor.options().dtype(at::kLong))});
            comm.all_reduce(tensor, ReduceOp::average, "t").wait(milliseconds(30000));
            if (comm.rank() == kVictim) (void)tensor.sum().item<float>();
          }
        } catch (const CommError& error) {
          if (comm.rank() == kVictim) throw;
          require(error.details().culprit == kVictim,
                  std::string("the right rank is named: ") + error.what());
          require(error.details().elapsed < milliseconds(10000), "soon");
          require(std::string(error.what()).find("CUDA error") != std::string::npos, error.what());
        }
      },
      c10::Device(c10::kCUDA));
  ranks->wait_all(milliseconds(40000));
  for (int r = 0; r < kNcclRanks; ++r) {
    if (r == kVictim) continue;
    EXPECT_EQ(ranks->outcome(r).exit_code, 0) << "rank " << r << ": " << ranks->outcome(r).error;
  }
  EXPECT_THAT(ranks->outcome(kVictim).error, ::testing::HasSubstr("CUDA error"));
}

TEST(NcclFaults, SurvivorsThatOnlyOrderStreamsLearnItToo) {
  expect_fault(
      milliseconds(30000),
      [](Comm& comm) {
        const auto tensor = ones();
        for (int i = 0;; ++i) {
          if (i == 20 && comm.rank() == kVictim) ::raise(SIGKILL);
          comm.all_reduce(tensor, ReduceOp::average, "t").wait();
          std::this_thread::sleep_for(milliseconds(1));
        }
      },
      [](const CommError& error) { require(error.details().culprit == kVictim, "the right rank is named"); });
}

TEST(NcclFaults, SilentRankIsNamedAfterTheTimeout) {
  expect_fault(
      milliseconds(1500),
      [](Comm& comm) {
        if (comm.rank() == kVictim) return std::this_thread::sleep_for(milliseconds(8000));
        comm.all_reduce(ones(), ReduceOp::sum, "t").wait(milliseconds(1500));
      },
      [](const CommError& error) {
        require(error.details().fault == CommFault::timeout, "the fault is a timeout");
        require(error.details().culprit == kVictim, "the silent rank is named");
      });
}

TEST(NcclFaults, DivergingRanksAreToldWhatEachIssued) {
  expect_fault(
      milliseconds(1500),
      [](Comm& comm) {
        if (comm.rank() == kVictim)
          comm.broadcast(ones(), 0, "head").wait(milliseconds(1500));
        else
          comm.all_reduce(ones(), ReduceOp::sum, "block.3").wait(milliseconds(1500));
      },
      [](const CommError& error) {
        const std::string text = error.what();
        require(text.find("broadcast 'head'") != std::string::npos, "one side is named: " + text);
        require(text.find("all_reduce 'block.3'") != std::string::npos, "and the other: " + text);
      });
}

TEST(NcclFaults, AbortReachesEveryone) {
  expect_fault(
      milliseconds(30000),
      [](Comm& comm) {
        if (comm.rank() == kVictim) comm.abort("loss is not finite");
        comm.all_reduce(ones(), ReduceOp::sum, "t").wait(milliseconds(30000));
      },
      [](const CommError& error) {
        require(error.details().fault == CommFault::aborted, "the fault is an abort");
        require(std::string(error.what()).find("loss is not finite") != std::string::npos, "with its reason");
      });
}

}  // namespace
}  // namespace fsdp::testing
