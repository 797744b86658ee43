// Promise: when ranks disagree, leave or give up, everyone gets an error that says who and what, not a hang.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The CommError each rank met, in rank order; ranks that met none have an empty text.
struct Met {
  std::vector<CommError::Details> details;
  std::vector<std::string> texts;
};

Met failures(int size, const CommOptions& options, const std::function<void(Comm&)>& body) {
  Met met;
  met.details.resize(static_cast<size_t>(size));
  met.texts.resize(static_cast<size_t>(size));
  run_ranks(size, [&](World& world) {
    try {
      auto comm = Comm::create(world, options);  // a quick rank may end the group while this one still joins
      body(comm);
    } catch (const CommError& error) {
      met.details[static_cast<size_t>(world.rank())] = error.details();
      met.texts[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  return met;
}

TEST(CommFaults, DifferentOperationsAreNamedOnBothSides) {
  const Met met = failures(3, {}, [](Comm& comm) {
    auto tensor = at::ones({8});
    comm.barrier();
    if (comm.rank() == 1)
      comm.broadcast(tensor, 0, "head").wait();
    else
      comm.all_reduce(tensor, ReduceOp::sum, "block.3").wait();
  });
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(met.details[r].fault, CommFault::mismatch) << met.texts[r];
    EXPECT_THAT(met.texts[r], AllOf(HasSubstr("broadcast 'head'"), HasSubstr("all_reduce 'block.3'")));
    EXPECT_EQ(met.details[r].sequence, 2u) << "joining and the barrier came before";
  }
}

TEST(CommFaults, SizesTypesRootsAndLabelsMustAgree) {
  const std::function<void(Comm&, bool)> cases[] = {
      [](Comm& comm, bool odd) { comm.all_reduce(at::ones({odd ? 8 : 9}), ReduceOp::sum, "n").wait(); },
      [](Comm& comm, bool odd) {
        comm.all_reduce(at::ones({8}, odd ? at::kFloat : at::kDouble), ReduceOp::sum, "n").wait();
      },
      [](Comm& comm, bool odd) {
        comm.all_reduce(at::ones({8}), odd ? ReduceOp::sum : ReduceOp::average, "n").wait();
      },
      [](Comm& comm, bool odd) { comm.broadcast(at::ones({8}), odd ? 0 : 1, "n").wait(); },
      [](Comm& comm, bool odd) { comm.broadcast(at::ones({8}), 0, odd ? "unit 1" : "unit 2").wait(); },
      [](Comm& comm, bool odd) { comm.allocate(MemoryUse::gather, odd ? 8 : 80000, at::kFloat); },
  };
  for (const auto& one : cases) {
    const Met met = failures(2, {}, [&](Comm& comm) { one(comm, comm.rank() == 1); });
    for (size_t r = 0; r < 2; ++r) EXPECT_EQ(met.details[r].fault, CommFault::mismatch) << met.texts[r];
  }
}

TEST(CommFaults, MessagesThatDoNotFitAreNamed) {
  const Met met = failures(2, {}, [](Comm& comm) {
    auto tensor = at::ones({comm.rank() == 0 ? 8 : 9});
    if (comm.rank() == 0)
      comm.send(tensor, 1, "activations").wait();
    else
      comm.recv(tensor, 0, "tokens").wait();
  });
  EXPECT_EQ(met.details[1].fault, CommFault::mismatch);
  EXPECT_THAT(met.texts[1], AllOf(HasSubstr("'activations' with 8"), HasSubstr("'tokens' with 9")));
}

TEST(CommFaults, ARankThatLeavesIsNamed) {
  const Met met = failures(3, {}, [](Comm& comm) {
    if (comm.rank() == 2) return;
    comm.barrier("after the epoch");
  });
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(met.details[r].fault, CommFault::peer_left) << met.texts[r];
    EXPECT_EQ(met.details[r].culprit, 2);
    EXPECT_EQ(met.details[r].rank, static_cast<int>(r));
    EXPECT_EQ(met.details[r].op, "barrier");
    EXPECT_EQ(met.details[r].label, "after the epoch");
  }
}

TEST(CommFaults, LeavingAfterTheLastCollectiveIsNoFault) {
  for (int i = 0; i < 50; ++i) {
    const Met met = failures(4, {}, [](Comm& comm) {
      auto slot = comm.allocate(MemoryUse::gather, 4000, at::kFloat);
      comm.all_gather(slot, at::ones({1000}), "last").wait();
    });
    for (const auto& text : met.texts) ASSERT_EQ(text, "");
  }
}

TEST(CommFaults, AbortReachesEveryoneWithItsReason) {
  const Met met = failures(4, {}, [](Comm& comm) {
    if (comm.rank() == 3) comm.abort("loss is not finite in step 17");
    comm.barrier();
  });
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(met.details[r].fault, CommFault::aborted);
    EXPECT_EQ(met.details[r].culprit, 3);
    EXPECT_THAT(met.texts[r], HasSubstr("loss is not finite in step 17"));
  }
}

TEST(CommFaults, TimeoutSaysWhoWhatAndHowLong) {
  std::atomic<bool> over{false};
  const Met met = failures(3, {.timeout = milliseconds(200)}, [&](Comm& comm) {
    if (comm.rank() == 1) {
      while (!over) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    try {
      comm.all_reduce(at::ones({4}), ReduceOp::sum, "unit 7").wait();
    } catch (...) {
      over = true;
      throw;
    }
  });
  for (const size_t r : {0, 2}) {
    EXPECT_EQ(met.details[r].fault, CommFault::timeout) << met.texts[r];
    EXPECT_EQ(met.details[r].culprit, 1);
    EXPECT_GE(met.details[r].elapsed, milliseconds(190));
    EXPECT_LE(met.details[r].elapsed, milliseconds(2000));
    EXPECT_THAT(met.texts[r], AllOf(HasSubstr("all_reduce 'unit 7'"), HasSubstr("rank 1 (host")));
  }
}

TEST(CommFaults, AFaultedGroupStaysFaulted) {
  failures(2, {}, [](Comm& comm) {
    if (comm.rank() == 0) comm.abort("over");
    auto tensor = at::ones({4});
    for (int i = 0; i < 2; ++i) EXPECT_THROW(comm.barrier(), CommError);
    EXPECT_THROW((void)comm.all_reduce(tensor, ReduceOp::sum, "x"), CommError);
    EXPECT_THROW((void)comm.send(tensor, 1 - comm.rank(), "x"), CommError);
  });
}

TEST(CommFaults, GroupsFailOnTheirOwn) {
  run_ranks(4, [](World& world) {
    auto comm = Comm::create(world);
    auto half = comm.split(world.rank() / 2);
    if (world.rank() == 0) half.abort("only this half");
    if (world.rank() < 2) {
      EXPECT_THROW(half.barrier(), CommError);
    } else {
      half.barrier();
    }
    comm.barrier();
  });
}

TEST(CommFaults, MisuseOfAllocatedMemoryIsRefused) {
  run_ranks(2, [&](World& world) {
    auto comm = Comm::create(world);
    auto slot = comm.allocate(MemoryUse::gather, 8, at::kFloat);
    auto buffer = comm.allocate(MemoryUse::reduce, 8, at::kFloat);
    auto out = at::empty({4});
    EXPECT_THAT(refusal([&] { (void)comm.all_reduce(slot, ReduceOp::sum, "slot"); }),
                HasSubstr("all ranks share"));
    EXPECT_THAT(refusal([&] { comm.release(slot); }), HasSubstr("not gathered"));
    comm.reduce_scatter(out, buffer, ReduceOp::sum, 1.0, "first").wait();
    EXPECT_THAT(refusal([&] { (void)comm.reduce_scatter(out, buffer, ReduceOp::sum, 1.0, "again"); }),
                HasSubstr("claim()"));
    comm.claim(buffer);
    comm.reduce_scatter(out, buffer, ReduceOp::sum, 1.0, "again").wait();
  });
}

TEST(CommFaults, CollectivesMoveOnWhileARankWaitsForAMessage) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    auto big = at::ones({1 << 22});
    auto note = at::ones({4});
    auto sum = comm.all_reduce(big, ReduceOp::sum, "big");
    if (world.rank() == 0) {
      comm.recv(note, 1, "note").wait();
      sum.wait();
    } else {
      sum.wait();
      comm.send(note, 0, "note").wait();
    }
    EXPECT_TRUE(big.eq(2).all().item<bool>());
  });
}

TEST(CommFaults, ARankThatComesTooLateIsToldSo) {
  std::atomic<int> refused{0};
  run_ranks(2, [&](World& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(500));
    try {
      Comm::create(world, {.timeout = milliseconds(150)});
    } catch (const Error&) {
      ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST(CommFaults, CrossingMessagesDoNotBlockEachOther) {
  run_ranks(2, [](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(20000)});
    const auto big = at::full({1 << 20}, world.rank(), at::kFloat);
    auto in = at::empty({1 << 20});
    auto sending = comm.send(big, 1 - world.rank(), "big");
    auto receiving = comm.recv(in, 1 - world.rank(), "big");
    comm.barrier();  // messages move while ranks wait for something else
    sending.wait();
    receiving.wait();
    EXPECT_TRUE(in.eq(1 - world.rank()).all().item<bool>());
  });
}

}  // namespace
}  // namespace fsdp::testing
