// Promise: when one rank fails by itself, everybody is told of that rank, in the words of its error.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kWords = "its call of the model threw: sample 17 is corrupt";

// The CommError that `does` throws.
CommError::Details fault_of(const std::function<void()>& does) {
  try {
    does();
  } catch (const CommError& error) {
    return error.details();
  }
  throw std::runtime_error("no CommError was thrown");
}

void require_left(const CommError::Details& met, int culprit, const std::string& words = kWords) {
  require(met.fault == CommFault::peer_left, std::string("the fault is ") + to_string(met.fault));
  require(met.culprit == culprit, "the culprit is " + std::to_string(met.culprit) + ": " + met.reason);
  require_words(met.reason, words);
}

TEST(FirstCause, WhyARankLeavesIsToldToItsPeers) {
  run_both(3, [](World& world) {
    auto comm = Comm::create(world);
    comm.barrier();
    if (world.rank() == 2) return comm.leaving(kWords);
    require_left(fault_of([&] { comm.barrier("after the epoch"); }), 2);
  });
}

TEST(FirstCause, ANoteCanBeTakenBack) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    comm.barrier();
    if (world.rank() == 1) {
      comm.leaving(kWords);
      return comm.leaving("");
    }
    const auto met = fault_of([&] { comm.barrier(); });
    require(met.reason.find("sample 17") == std::string::npos, met.reason);
    require_words(met.reason, "it closed its communicator");
  });
}

TEST(FirstCause, ANoteIsNoFaultWhileNobodyIsMissed) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    if (world.rank() == 1) comm.leaving(kWords);
    for (int i = 0; i < 3; ++i) comm.barrier();
  });
}

// The rank that fails issues something else while it unwinds, as a destructor may.
TEST(FirstCause, WhatALeavingRankStillDoesIsNoMismatch) {
  run_ranks(3, [](World& world) {
    auto comm = Comm::create(world);
    comm.barrier();
    if (world.rank() == 1) {
      comm.leaving(kWords);
      return require_left(fault_of([&] { comm.barrier("on the way out"); }), 1);
    }
    require_left(fault_of([&] { comm.all_reduce(at::ones({4}), ReduceOp::sum, "step").wait(); }), 1);
  });
}

TEST(FirstCause, ARankThatDiesWithANoteIsToldByIt) {
  auto ranks = fork_ranks(3, [](World& world) {
    auto comm = Comm::create(world);
    comm.barrier();
    if (world.rank() == 1) {
      comm.leaving(kWords);
      ::raise(SIGKILL);
    }
    require_left(fault_of([&] { comm.barrier(); }), 1);
  });
  ranks->wait_all(milliseconds(5000));
  for (const int r : {0, 2}) EXPECT_EQ(ranks->outcome(r).exit_code, 0) << ranks->outcome(r).error;
}

TEST(FirstCause, AStuckRankWithANoteIsToldByIt) {
  run_processes(2, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(400)});
    comm.barrier();
    if (world.rank() == 0) return require_left(fault_of([&] { comm.barrier(); }), 1);
    comm.leaving(kWords);
    std::this_thread::sleep_for(milliseconds(1500));
  });
}

// Rank 1 keeps the group, and does nothing with it.
TEST(FirstCause, ARankThatGaveUpIsToldAtOnceThoughItStays) {
  std::atomic<int> told = 0;
  run_ranks(3, [&](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
    if (world.rank() == 1) {
      comm.gave_up(kWords);
      while (told < 2 && elapsed() < milliseconds(30000)) std::this_thread::sleep_for(milliseconds(1));
      return require_left(fault_of([&] { comm.barrier(); }), 1);
    }
    const auto met = fault_of([&] { comm.barrier("step"); });
    ++told;
    require_left(met, 1);
    require(elapsed() < milliseconds(5000), "at once");
  });
}

// It has begun the sum, and will not go on with it.
TEST(FirstCause, ARankThatGaveUpInsideAnOperationIsToldSoon) {
  std::atomic<int> told = 0;
  run_ranks(2, [&](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    const auto start = std::chrono::steady_clock::now();
    at::Tensor large = at::ones({1 << 22});  // many rounds
    if (world.rank() == 1) {
      const auto summing = comm.all_reduce(large, ReduceOp::sum, "step");
      comm.gave_up(kWords);
      while (told < 1 && std::chrono::steady_clock::now() - start < milliseconds(30000))
        std::this_thread::sleep_for(milliseconds(1));
      return require_left(fault_of([&] { comm.barrier(); }), 1);
    }
    const auto met = fault_of([&] { comm.all_reduce(large, ReduceOp::sum, "step").wait(); });
    ++told;
    require_left(met, 1);
    require(std::chrono::steady_clock::now() - start < milliseconds(10000), "soon");
  });
}

TEST(FirstCause, RanksThatGaveUpAlikeGoOn) {
  run_ranks(3, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    for (int round = 0; round < 6; ++round) {
      comm.barrier();
      if (world.rank() == round % 3) std::this_thread::sleep_for(milliseconds(100));
      comm.gave_up(kWords);
      if (world.rank() == (round + 1) % 3) std::this_thread::sleep_for(milliseconds(100));
      comm.leaving("");
      comm.barrier();
    }
    comm.leaving("");
    comm.barrier("all have caught up");
    if (world.rank() == 1) return;
    const auto met = fault_of([&] { comm.barrier(); });
    require(met.reason.find("sample 17") == std::string::npos, "taken back, not " + met.reason);
  });
}

// Rank 0 fails in the row of 0 and 1. Rank 1 leaves the column of 1 and 3 because of that.
TEST(FirstCause, IsPassedOnToOtherGroups) {
  run_ranks(4, [](World& world) {
    auto all = Comm::create(world);
    auto row = all.split(world.rank() / 2);
    auto column = all.split(world.rank() % 2);
    all.barrier();
    if (world.rank() == 0) return row.leaving(kWords);
    if (world.rank() == 1) return require_left(fault_of([&] { row.barrier(); }), 0);
    if (world.rank() == 2) return require_left(fault_of([&] { all.barrier(); }), 0, "");
    const auto met = fault_of([&] { column.barrier(); });
    require_words(met.reason, kWords);
    require_words(met.reason, "rank 0 (host");
  });
}

TEST(FirstCause, ACulpritOfTheSameGroupIsNamedByWhoeverLeaves) {
  run_ranks(3, [](World& world) {
    auto first = Comm::create(world);
    auto second = first.split(0);
    second.barrier();
    if (world.rank() == 0) first.abort("loss is not finite");
    if (world.rank() < 2) {
      fault_of([&] { first.barrier(); });
      return;
    }
    require_left(fault_of([&] { second.barrier(); }), 0, "loss is not finite");
  });
}

TEST(FirstCause, AnExceptionDoesNotWaitForWorkInFlight) {
  auto ranks = fork_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    auto slot = comm.allocate(MemoryUse::gather, 8, at::kFloat);
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(5000));
    struct Releases {
      Comm& comm;
      at::Tensor slot;
      ~Releases() { comm.release(slot); }
    };
    const auto gathering = comm.all_gather(slot, at::ones({4}), "slot");
    const Releases at_end{comm, slot};
    const auto summing = comm.all_reduce(at::ones({1 << 22}), ReduceOp::sum, "sum");
    const auto sending = comm.send(at::ones({1 << 20}), 1 - world.rank(), "note");
    if (world.rank() == 1) throw std::runtime_error("sample 17 is corrupt");
  });
  EXPECT_EQ(ranks->wait_any(milliseconds(3000)), 1) << "rank 1 waits for the others";
  EXPECT_THAT(ranks->outcome(1).error, HasSubstr("sample 17 is corrupt"));
  EXPECT_FALSE(ranks->outcome(1).secondary);
}

TEST(FirstCause, WorkDroppedByAnExceptionIsCompleteWhereTheOthersCome) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    auto slot = comm.allocate(MemoryUse::gather, 8, at::kFloat);
    auto sum = at::ones({1 << 20});
    try {
      const auto gathering = comm.all_gather(slot, at::full({4}, 1.0 + world.rank()), "slot");
      const auto summing = comm.all_reduce(sum, ReduceOp::sum, "sum");
      throw std::runtime_error("skip this batch");
    } catch (const std::runtime_error&) {
    }
    require(sum.eq(2).all().item<bool>(), "the sum is there");
    require(slot.sum().item<double>() == 12, "the slot is there");
    comm.all_gather(slot, at::full({4}, 3.0), "slot").wait();
    require(slot.sum().item<double>() == 24, "the slot can be gathered again");
  });
}

struct SkipBatch {};

// The dropped sum would read memory that has changed since.
TEST(FirstCause, AGroupWithAbandonedWorkIsFinished) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world);
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(2000));
    auto sum = at::ones({1 << 22});
    const auto met = fault_of([&] {
      try {
        const auto summing = comm.all_reduce(sum, ReduceOp::sum, "sum");
        if (world.rank() == 1) throw SkipBatch{};
      } catch (const SkipBatch&) {
      }
      sum.zero_();
      comm.barrier("next");
    });
    require(met.fault == CommFault::aborted && met.culprit == 1, met.reason);
    require_words(met.reason, "dropped work in flight");
  });
}

std::string words_of_run(int size, const RankBody& body) {
  try {
    run_local(size, body, {.device = c10::Device(c10::kCPU)});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Destroyed after the group: the other ranks end first.
struct EndsLate {
  bool late;
  ~EndsLate() { std::this_thread::sleep_for(milliseconds(late ? 400 : 0)); }
};

TEST(FirstCause, RunLocalThrowsTheErrorOfTheRankThatFailedByItself) {
  EXPECT_THAT(words_of_run(4,
                           [](World& world) {
                             const EndsLate end{world.rank() == 3};
                             auto comm = Comm::create(world);
                             comm.barrier();
                             if (world.rank() == 3) throw std::runtime_error("sample 17 is corrupt");
                             comm.barrier();
                           }),
              HasSubstr("rank 3 of 4 failed: sample 17 is corrupt"));
}

// As TorchScript's interpreter does, and many a training loop.
TEST(FirstCause, RunLocalKnowsAWrappedErrorAboutAnotherRank) {
  EXPECT_THAT(words_of_run(3,
                           [](World& world) {
                             const EndsLate end{world.rank() == 2};
                             auto comm = Comm::create(world);
                             comm.barrier();
                             if (world.rank() == 2) throw std::runtime_error("sample 17 is corrupt");
                             try {
                               comm.barrier();
                             } catch (const Error& error) {
                               throw std::runtime_error(std::string("step 3 failed: ") + error.what());
                             }
                           }),
              HasSubstr("rank 2 of 3 failed: sample 17 is corrupt"));
}

TEST(FirstCause, RunLocalNamesTheRankThatASignalEnded) {
  EXPECT_THAT(words_of_run(3,
                           [](World& world) {
                             {
                               auto comm = Comm::create(world);
                               comm.barrier();
                               if (world.rank() != 1) comm.barrier();
                             }
                             std::this_thread::sleep_for(milliseconds(400));
                             ::raise(SIGALRM);  // one that sanitizers leave alone
                           }),
              HasSubstr("rank 1 of 3 was ended by signal 14 ("));
}

TEST(FirstCause, RunLocalEndsAStoppedRankSoonAndNamesIt) {
  const auto start = std::chrono::steady_clock::now();
  const std::string words = words_of_run(3, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(500)});
    comm.barrier();
    if (world.rank() == 1) ::raise(SIGSTOP);
    comm.barrier("step 3");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(6000));
  EXPECT_THAT(words,
              AllOf(HasSubstr("barrier 'step 3'"), HasSubstr("rank 1 (host"), Not(HasSubstr("signal"))));
}

}  // namespace
}  // namespace fsdp::testing
