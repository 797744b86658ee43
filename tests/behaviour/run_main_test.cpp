// Promise: run_main() takes --ranks and leaves other arguments to the program; when a rank fails, the message
// says which rank and how, and the exit code is the rank's.
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "launch/failure.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// How a main ended: its exit code, and its text on stderr.
struct Ended {
  int code;
  std::string said;
};

Ended run_and_listen(const std::function<int()>& main) {
  ::testing::internal::CaptureStderr();
  const int code = main();
  return {code, ::testing::internal::GetCapturedStderr()};
}

template <typename Rank>
Ended run_with(std::vector<std::string> words, const Rank& rank) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return run_and_listen([&] { return run_main(static_cast<int>(argv.size()), argv.data(), rank); });
}

// The number of ranks that the arguments start.
int ranks_of(const std::vector<std::string>& words) {
  return run_with(words, [](World& world) { ::_exit(100 + world.size()); }).code - 100;
}

TEST(RunMain, TurnsExceptionsIntoAMessageAndAnExitCode) {
  EXPECT_EQ(run_main([] {}), 0);
  const Ended own = run_and_listen([] { return run_main([] { throw std::runtime_error("no such file"); }); });
  EXPECT_EQ(own.code, 1);
  EXPECT_EQ(own.said, "error: no such file\n");
  const Ended torch = run_and_listen([] { return run_main([] { TORCH_CHECK(false, "sizes differ"); }); });
  EXPECT_EQ(torch.code, 1);
  EXPECT_EQ(torch.said, "error: sizes differ\n") << "without a stack trace";
  EXPECT_EQ(run_and_listen([] { return run_main([] { throw 7; }); }).code, 1);
}

TEST(RunMain, FindsRanksAmongOtherArguments) {
  const ScopedEnv device("FSDP_DEVICE", "cpu");
  EXPECT_EQ(ranks_of({"program", "--ranks", "2"}), 2);
  EXPECT_EQ(ranks_of({"program", "--ranks=2"}), 2);
  EXPECT_EQ(ranks_of({"program", "--epochs", "3", "--ranks", "2", "data.bin"}), 2);
  EXPECT_EQ(ranks_of({"program", "--ranks=1", "--ranks=2"}), 2) << "the last one counts";
  EXPECT_EQ(run_with({"program", "--epochs", "3", "--", "--ranks", "2"},
                     [](World& world) { require(world.size() == 1, "alone"); })
                .code,
            0);
}

TEST(RunMain, RefusesValuesThatAreNoNumberOfRanks) {
  for (const char* wrong : {"0", "-3", "many", "2x", "99999999999"}) {
    for (const bool joined : {false, true}) {
      const std::vector<std::string> words =
          joined ? std::vector<std::string>{"program", std::string("--ranks=") + wrong}
                 : std::vector<std::string>{"program", "--ranks", wrong};
      const Ended told = run_with(words, [](World&) {});
      EXPECT_EQ(told.code, 2) << wrong;
      EXPECT_EQ(told.said, "error: --ranks '" + std::string(wrong) +
                               "' is not a number of ranks; expected a whole number of at least 1, for "
                               "example --ranks 4\n");
    }
  }
  for (const char* word : {"--ranks", "--ranks="}) {
    const Ended told = run_with({"program", word}, [](World&) {});
    EXPECT_EQ(told.code, 2) << word;
    EXPECT_THAT(told.said, StartsWith("error: --ranks has no value; expected a whole number")) << word;
  }
}

TEST(RunMain, ReturnsTheExitCodeOfTheRankThatFailed) {
  const auto with = [](const RankBody& rank) { return run_with({"program", "--ranks", "2"}, rank); };
  const Ended exited = with([](World& world) {
    if (world.rank() == 1) ::_exit(3);  // as std::exit(3), without the statics of this test program
  });
  EXPECT_EQ(exited.code, 3);
  EXPECT_EQ(exited.said, "error: rank 1 of 2 ended with exit code 3\n");
  const Ended thrown = with([](World& world) {
    if (world.rank() == 1) throw std::runtime_error("sample 17 is corrupt");
  });
  EXPECT_EQ(thrown.code, 1);
  EXPECT_EQ(thrown.said, "error: rank 1 of 2 failed: sample 17 is corrupt\n");
  const Ended killed = with([](World& world) {
    if (world.rank() == 1) ::raise(SIGKILL);
  });
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_EQ(
      killed.said,
      "error: rank 1 of 2 was ended by SIGKILL (signal 9): somebody killed it, or the kernel did because "
      "memory ran out (see dmesg)\n");
}

TEST(RunMain, NamesARankOnceWhereItsMessageBeginsWithIt) {
  const auto words = [](const std::string& text) {
    return run_with({"program", "--ranks", "2"},
                    [&](World& world) {
                      if (world.rank() == 1) throw std::runtime_error(text);
                    })
        .said;
  };
  EXPECT_EQ(words("rank 1: no data"), "error: rank 1 of 2: no data\n");
  EXPECT_EQ(words("fsdp: rank 1: no memory"), "error: fsdp: rank 1 of 2: no memory\n");
  EXPECT_EQ(words("rank 10: no data"), "error: rank 1 of 2 failed, and says: rank 10: no data\n");
  EXPECT_EQ(words("rank 0: no data"), "error: rank 1 of 2 failed, and says: rank 0: no data\n");
}

// save() and load() throw the error of the lowest rank on all of them.
TEST(RunMain, NamesTheRankThatASharedErrorComesFrom) {
  const Ended failed = run_with({"program", "--ranks", "2"}, [](World& world) {
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    throw std::runtime_error("rank 0: cannot write step-00000100");
  });
  EXPECT_EQ(failed.said, "error: rank 0 of 2: cannot write step-00000100\n");
}

TEST(RunMain, SaysWhichRankOfALauncherItIs) {
  const ScopedEnv rank("RANK", "1"), size("WORLD_SIZE", "4"), address("MASTER_ADDR", "127.0.0.1");
  const auto words = [](const std::string& text) {
    return run_and_listen([&] { return run_main([&] { throw std::runtime_error(text); }); }).said;
  };
  EXPECT_EQ(words("no such file"), "error: rank 1 of 4: no such file\n");
  EXPECT_EQ(words("rank 1: no data"), "error: rank 1 of 4: no data\n");
  EXPECT_EQ(words("rank 2: no data"), "error: rank 1 of 4 says: rank 2: no data\n");
  const ScopedEnv alone("WORLD_SIZE", "1"), first("RANK", "0");
  EXPECT_EQ(words("no such file"), "error: no such file\n");
  const ScopedEnv unset("RANK", nullptr);
  EXPECT_EQ(words("no such file"), "error: no such file\n") << "an environment that init() refuses";
}

TEST(RunMain, ShowsTheBacktraceThatTorchIsAskedFor) {
  const auto here = [] {
    return run_and_listen([] { return run_main([] { TORCH_CHECK(false, "sizes differ"); }); });
  };
  const auto in_rank = [] {
    return run_with({"program", "--ranks", "2"},
                    [](World& world) { TORCH_CHECK(world.rank() != 1, "sizes differ"); });
  };
  const ScopedEnv on("TORCH_SHOW_CPP_STACKTRACES", "1");
  const auto backtrace = AllOf(HasSubstr("\nException raised from "), HasSubstr("\nframe #0: "));
  EXPECT_THAT(here().said, AllOf(StartsWith("error: sizes differ\n"), backtrace));
  EXPECT_THAT(in_rank().said, AllOf(StartsWith("error: rank 1 of 2 failed: sizes differ\n"), backtrace));
  const ScopedEnv off("TORCH_SHOW_CPP_STACKTRACES", "0");
  EXPECT_EQ(here().said, "error: sizes differ\n");
  EXPECT_EQ(in_rank().said, "error: rank 1 of 2 failed: sizes differ\n");
}

TEST(RunMain, SignalsHaveNamesAndReasons) {
  EXPECT_EQ(detail::describe_signal(SIGSEGV),
            "crashed with SIGSEGV (signal 11): it used memory that is not mapped, or its stack overflowed");
  EXPECT_THAT(detail::describe_signal(SIGABRT),
              StartsWith("was ended by SIGABRT (signal 6): abort() was called"));
  EXPECT_THAT(detail::describe_signal(SIGTERM),
              StartsWith("was ended by SIGTERM (signal 15): somebody asked it"));
  EXPECT_THAT(detail::describe_signal(SIGUSR1), StartsWith("was ended by signal 10 ("));
}

TEST(RunMain, RunLocalThrowsWhichRankFailedAndHow) {
  const auto error_of = [](const RankBody& rank) {
    try {
      run_local(2, rank, {.device = c10::Device(c10::kCPU)});
    } catch (const RankError& error) {
      return error;
    }
    throw std::runtime_error("no RankError");
  };
  const RankError exited = error_of([](World& world) {
    if (world.rank() == 1) ::_exit(200);
  });
  EXPECT_THAT((std::vector{exited.rank(), exited.exit_code(), exited.signal()}), ElementsAre(1, 200, 0));
  const RankError ended = error_of([](World& world) {
    if (world.rank() == 0) ::raise(SIGTERM);
  });
  EXPECT_THAT((std::vector{ended.rank(), ended.exit_code(), ended.signal()}),
              ElementsAre(0, 128 + SIGTERM, SIGTERM));
}

TEST(RunMain, PassesOtherArgumentsToTheProgram) {
  const ScopedEnv device("FSDP_DEVICE", "cpu");
  std::vector<std::string> seen;
  const auto keep = [&](World&, const std::vector<std::string>& arguments) { seen = arguments; };
  EXPECT_EQ(run_with({"program"}, keep).code, 0);
  EXPECT_THAT(seen, IsEmpty());
  run_with({"program", "--help"}, keep);
  EXPECT_THAT(seen, ElementsAre("--help"));
  run_with({"program", "--rank", "2", "--ranksize=3", "--", "--ranks", "5"}, keep);
  EXPECT_THAT(seen, ElementsAre("--rank", "2", "--ranksize=3", "--", "--ranks", "5"));
  const auto check = [](World& world, const std::vector<std::string>& arguments) {
    require(world.size() == 2 && arguments == std::vector<std::string>{"--lr", "0.1"},
            "--lr 0.1 in both ranks");
  };
  EXPECT_EQ(run_with({"program", "--lr", "--ranks", "2", "0.1"}, check).code, 0);
}

TEST(RunMain, ShowsItsUsageForHelpAlone) {
  const auto run = [](World&) {};
  for (const char* help : {"--help", "-h"}) {
    const Ended told = run_with({"program", help}, run);
    EXPECT_EQ(told.code, 0);
    EXPECT_THAT(told.said, AllOf(StartsWith("usage: program [--ranks N]\n"), HasSubstr("start N CPU ranks")));
  }
  const ScopedEnv device("FSDP_DEVICE", "cpu");
  EXPECT_THAT(run_with({"program", "-h", "host7"}, run).said, Not(HasSubstr("usage")));
}

}  // namespace
}  // namespace fsdp::testing
