// Promise: ranks that call the model a different number of times are told, on every rank, which call of what
// each of them is in.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "behaviour/small_net.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr auto kTimeout = std::chrono::seconds(6);
constexpr auto kSoon = std::chrono::seconds(5);

// A training program with which rank 0 or 1 does something that the others do not.
struct Program {
  Program(const World& world_, const std::string& folder_, CommOptions comm)
      : world(world_),
        folder(folder_),
        model(fully_shard(world, make_same_net(), {.wrap = by_type<BlockImpl>(), .comm = std::move(comm)})),
        optimizer(model.parameters(), 0.1) {}

  void forward() { loss = loss_of(model(net_batch(world.rank()))); }
  void train() {
    forward();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  void evaluate() {
    const torch::NoGradGuard no_grad;
    model(net_batch(9));
  }
  void save() {
    RunState run{.model = model, .optimizer = &optimizer};
    fsdp::save(folder, run, {.timeout = kTimeout});
  }
  bool is(int rank) const { return world.rank() == rank; }

  const World& world;
  std::string folder;
  Sharded<NetImpl> model;
  torch::optim::SGD optimizer;
  Tensor loss;
};

struct Case {
  std::string name;
  std::function<void(Program&)> does;  // after four steps
  std::vector<std::string> words;      // every rank hears them
};

std::vector<Case> cases() {
  return {
      {"rank 0 evaluates alone",
       [](Program& p) {
         if (p.is(0)) p.evaluate();
         p.train();
         p.train();
       },
       {"rank 0", "in its 1st forward without gradients", "in its 5th backward"}},
      {"an evaluation of uneven length",
       [](Program& p) {
         for (int i = 0; i < (p.is(1) ? 3 : 2); ++i) p.evaluate();
         p.train();
       },
       {"rank 1", "in its 3rd forward without gradients", "in its 5th backward"}},
      {"a forward too many",
       [](Program& p) {
         p.forward();
         if (p.is(1)) p.forward();
         p.loss.backward();
         p.train();
       },
       {"rank 1", "in its 6th forward", "in its 5th backward"}},
      {"a backward too few",
       [](Program& p) {
         p.forward();
         if (!p.is(1)) p.loss.backward();
         p.evaluate();
         p.evaluate();
       },
       {"rank 1", "backward", "in its 1st forward without gradients"}},
      {"a save on rank 0 alone",
       [](Program& p) {
         if (p.is(0)) p.save();
         p.train();
       },
       {"rank 0", "in save('", "in its 5th forward"}},
      {"a save on all ranks but rank 0",
       [](Program& p) {
         if (!p.is(0)) p.save();
         p.train();
       },
       {"rank 0", "in save('", "in its 5th forward"}},
      {"clipping on one rank",
       [](Program& p) {
         p.forward();
         p.loss.backward();
         if (p.is(1)) p.model.clip_grad_norm_(1.0);
         p.train();
       },
       {"rank 1", "in clip_grad_norm_()", "in its 6th forward"}},
      {"a metric on one rank",
       [](Program& p) {
         p.world.comm();
         if (p.is(1)) p.world.mean(1.0);
         p.train();
       },
       {"rank 1", "in World::mean()", "in its 5th forward"}},
  };
}

// The internal terms that users were shown before.
// Nor are units to blame.
const std::vector<std::string> kInternal = {"allocation", "at byte", "shards are not read", "argument",
                                            "one unit"};

void expect_told(const Case& one, int ranks, bool processes, const CommOptions& comm) {
  const TempFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto body = [&](World& world) {
    Program program(world, folder / "run", comm);
    for (int i = 0; i < 4; ++i) program.train();
    std::string heard = "nothing";
    try {
      one.does(program);
    } catch (const CommError& error) {
      heard = error.what();
    } catch (const RendezvousError& error) {
      heard = error.what();
    }
    for (const std::string& words : one.words) require_words(heard, words);
    for (const std::string& words : kInternal)
      require(heard.find(words) == std::string::npos, "'" + words + "' says nothing to a user: " + heard);
    if (world.rank() == 0 && std::getenv("FSDP_SHOW") != nullptr)
      std::cout << one.name << ": " << heard << "\n";
  };
  if (processes)
    EXPECT_NO_THROW(run_processes(ranks, body));
  else
    EXPECT_NO_THROW(run_ranks(ranks, body));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
}

TEST(Calls, RanksThatDifferAreToldTheCallOfEach) {
  for (const Case& one : cases())
    for (const int ranks : {2, 3})
      for (const bool processes : {false, true}) {
        SCOPED_TRACE(one.name + ", " + std::to_string(ranks) + (processes ? " processes" : " threads"));
        expect_told(one, ranks, processes, {.timeout = kTimeout});
      }
}

// A rank that has returned from the program while others still need it.
TEST(Calls, ARankThatIsDoneEarlyIsNamed) {
  run_ranks(2, [](World& world) {
    Program program(world, "", {.timeout = kTimeout});
    for (int i = 0; i < 3 + world.rank(); ++i) {
      try {
        program.train();
      } catch (const CommError& error) {
        require(i == 3, "only the fourth step fails");
        for (const char* words : {"rank 0", "in its 4th forward", "after its 3rd backward"})
          require_words(error.what(), words);
      }
    }
  });
}

TEST(Calls, ATimeoutNamesTheCallOfTheRankThatIsLate) {
  run_ranks(2, [](World& world) {
    Program program(world, "", {.timeout = std::chrono::milliseconds(700)});
    program.train();
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    std::string heard = "nothing";
    try {
      program.train();
    } catch (const CommError& error) {
      heard = error.what();
    }
    for (const char* words : {"rank 1", "outside the model, after its 1st backward"})
      require_words(heard, words);
  });
}

// Two models of a run are told apart.
TEST(Calls, NameTheModelWhereThereAreSeveral) {
  run_ranks(2, [](World& world) {
    const CommOptions comm{.timeout = std::chrono::seconds(1)};  // two groups: the timeout finds it
    Program generator(world, "", comm), critic(world, "", comm);
    generator.train();
    critic.train();
    std::string heard = "nothing";
    try {
      for (int i = 0; i < 3; ++i) (world.rank() == 0 ? generator : critic).train();
    } catch (const CommError& error) {
      heard = error.what();
    }
    require_words(heard, "of model 1 (");
    require_words(heard, "of model 2 (");
  });
}

// A thread beside the training one has groups of its own, at its own pace.
TEST(Calls, AThreadWithAGroupOfItsOwnDisturbsNobody) {
  run_processes(2, [](World& world) {
    Program program(world, "", {.timeout = kTimeout});
    Comm own = Comm::create(world);
    std::exception_ptr failed;
    std::thread beside([&] {
      try {
        for (int i = 0; i < 4; ++i) {
          if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
          own.barrier("beside");
        }
      } catch (...) {
        failed = std::current_exception();
      }
    });
    for (int i = 0; i < 6; ++i) {
      program.train();
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(70));
      require(world.mean(2.0) == 2.0, "mean()");
    }
    beside.join();
    if (failed) std::rethrow_exception(failed);
  });
}

TEST(Calls, LastErrorHasWhatACallThrew) {
  run_ranks(1, [](World& world) {
    Program program(world, "", {});
    require_words(refusal([&] { program.model(torch::ones({4, 7})); }), "cannot be multiplied");
    require(program.model.last_error() != nullptr, "an error of forward");
  });
}

}  // namespace
}  // namespace fsdp::testing
