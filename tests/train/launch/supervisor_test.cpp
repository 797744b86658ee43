// Real ranks that end in every way: which one is the cause, and that all are ended.
#include "app/launch/supervisor.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/launch/launch_fixture.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Supervisor : public LaunchTest {
 protected:
  Outcome run(const Job& job) {
    return run_ranks(job, [this](const std::string& line) { told_.push_back(line); });
  }
  // Rank 1 does `action`, the others hang: the outcome's cause, which must be rank 1.
  RankEnd cause_of(const std::string& action) {
    const Outcome outcome = run(job(3, {"1:" + action, "*:hang"}));
    EXPECT_EQ(outcome.ends.size(), 3U);
    const RankEnd* cause = outcome.cause();
    EXPECT_TRUE(cause != nullptr && cause->rank == 1) << report(outcome);
    EXPECT_THAT(report(outcome), StartsWith("rank 1 of 3 on "));
    return cause != nullptr ? *cause : RankEnd{};
  }
  std::string refusal(const Job& job) {
    try {
      run(job);
    } catch (const LaunchError& error) {
      return error.what();
    }
    return "not refused";
  }

  std::vector<std::string> told_;
};

TEST_F(Supervisor, AllRanksEndWithZero) {
  const Outcome outcome = run(job(4, {"*:touch:" + path("rank-")}));
  EXPECT_EQ(outcome.exit_code(), 0);
  EXPECT_EQ(outcome.ends.size(), 4U);
  for (const char* rank : {"0", "1", "2", "3"})
    EXPECT_TRUE(std::filesystem::exists(path(std::string("rank-") + rank)));
  EXPECT_TRUE(told_.empty());
}

// Other nodes whose word came before the ranks were started: nothing can be read any more.
class EarlyWord final : public Elsewhere {
 public:
  EarlyWord() { EXPECT_EQ(::pipe(ends_), 0); }
  ~EarlyWord() override { ::close(ends_[0]), ::close(ends_[1]); }
  int fd() const override { return ends_[0]; }
  Word next() override { return std::exchange(word_, Word::none); }
  std::string why() const override { return "a rank failed"; }
  void failed_here() override {}

 private:
  int ends_[2];
  Word word_ = Word::failed;
};

TEST_F(Supervisor, AFailureElsewhereBeforeTheStartEndsTheRanks) {
  EarlyWord other;
  const Job hang = job(2, {"*:hang"});
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_ranks(
      hang, [](const std::string&) {}, &other);
  EXPECT_EQ(outcome.ends.size(), 2U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(Supervisor, ExitCodeOfTheFirstFailure) {
  const RankEnd cause = cause_of("exit:3");
  EXPECT_EQ(cause.exit_code, 3);
  EXPECT_EQ(cause.signal, 0);
}

TEST_F(Supervisor, RankEndedByASignal) {
  EXPECT_EQ(cause_of("signal:9").exit_code, 137);
  EXPECT_EQ(cause_of("signal:11").exit_code, 139);
  EXPECT_EQ(cause_of("signal:6").exit_code, 134);
}

TEST_F(Supervisor, RankEndedByAnothersSigtermIsTheCause) { EXPECT_EQ(cause_of("signal:15").exit_code, 143); }

TEST_F(Supervisor, FailureThatOthersReportFirst) {
  const Outcome outcome = run(job(3, {"0:exit:5", "1:exit:4", "2:sleep:40", "2:exit:3"}));
  ASSERT_NE(outcome.cause(), nullptr);
  EXPECT_EQ(outcome.cause()->rank, 2) << report(outcome);
  EXPECT_EQ(outcome.exit_code(), 3);
}

TEST_F(Supervisor, MessageAndCulpritOfTheErrorFile) {
  const std::string blames = R"({"message": {"message": "lost a peer", "extraInfo": {"culprit": 2}}})";
  const Outcome outcome =
      run(job(3, {"0:error-file:" + blames, "0:exit:1", "2:sleep:40",
                  R"(2:error-file:{"message": "ValueError: step 7"})", "2:exit:1", "*:hang"}));
  ASSERT_NE(outcome.cause(), nullptr);
  EXPECT_EQ(outcome.cause()->rank, 2) << report(outcome);
  EXPECT_EQ(outcome.cause()->message, "ValueError: step 7");
  EXPECT_THAT(report(outcome), HasSubstr("\n  [rank 2] ValueError: step 7\n"));
}

TEST_F(Supervisor, StoppedRankIsTheCauseAndIsKilled) {
  const Outcome outcome = run(job(2, {"1:stop", "0:sleep:100", "0:exit:5"}));
  ASSERT_NE(outcome.cause(), nullptr);
  EXPECT_EQ(outcome.cause()->rank, 1) << report(outcome);
  EXPECT_EQ(outcome.cause()->kind, EndKind::stopped);
}

TEST_F(Supervisor, RankThatIgnoresSigtermIsKilled) {
  const Outcome outcome = run(job(2, {"1:hang-on-term", "0:sleep:50", "0:exit:3"}));
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_EQ(outcome.ends.at(1).kind, EndKind::killed);
}

TEST_F(Supervisor, OthersMayAnswerSigterm) {
  Job patient = job(2, {"1:end-on-term:0", "0:sleep:50", "0:exit:3"});
  patient.patience.term = std::chrono::seconds(20);
  const Outcome outcome = run(patient);
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_FALSE(outcome.ends.at(1).failed()) << report(outcome);
}

TEST_F(Supervisor, LogsOfRanksAndTheirLastLines) {
  Job logged = job(2, {"1:say:hello", "1:complain:no such file", "1:exit:1", "0:say:mine", "*:hang"});
  logged.log_folder = path("logs");
  const Outcome outcome = run(logged);
  EXPECT_EQ(text_of(path("logs/rank-0.log")), "mine\n");
  EXPECT_EQ(text_of(path("logs/rank-1.log")), "hello\nno such file\n");
  ASSERT_NE(outcome.cause(), nullptr);
  EXPECT_THAT(outcome.cause()->last_lines, ElementsAre("hello", "no such file"));
  EXPECT_THAT(report(outcome), HasSubstr("All of its output: " + path("logs/rank-1.log")));
}

TEST_F(Supervisor, WhatARankStartedEndsWithIt) {
  const Outcome outcome = run(job(1, {"0:child:" + path("child-")}));
  EXPECT_EQ(outcome.exit_code(), 0);
  const pid_t child = pid_in(path("child-0"));
  EXPECT_TRUE(wait_until([&] { return !runs(child); }));
}

TEST_F(Supervisor, RefusesProgramsThatCannotRun) {
  Job bad = job(2, {});
  bad.argv = {path("missing")};
  EXPECT_THAT(refusal(bad), AllOf(HasSubstr("No such file"), HasSubstr("Check the path")));
  bad.argv = {"no-such-program"};
  EXPECT_THAT(refusal(bad), HasSubstr("no folder of PATH has such a program"));
  std::ofstream(path("text")) << "hello\n";
  bad.argv = {path("text")};
  EXPECT_THAT(refusal(bad), HasSubstr("It is not executable: chmod +x"));
  ::chmod(path("text").c_str(), 0755);
  EXPECT_THAT(refusal(bad), HasSubstr("a script without a first line such as #!/bin/sh"));
  std::ofstream(path("text")) << "#!/no/such/shell\n";
  EXPECT_THAT(refusal(bad), HasSubstr("The interpreter that it names"));
  bad.argv = {path("")};
  EXPECT_THAT(refusal(bad), HasSubstr("Name a program in it"));
}

TEST_F(Supervisor, RefusesJobsThatMakeNoSense) {
  EXPECT_THAT(refusal(Job{}), HasSubstr("there is no program"));
  EXPECT_THAT(refusal(job(0, {})), HasSubstr("cannot start 0 ranks"));
  Job bad = job(1, {});
  bad.nodes = 2;
  EXPECT_THAT(refusal(bad), HasSubstr("MASTER_PORT is missing"));
  bad.node_rank = 2;
  EXPECT_THAT(refusal(bad), HasSubstr("node rank 2 is not below the number of nodes, 2"));
}

TEST_F(Supervisor, TellsWhatItWaitsFor) {
  Job slow = job(2, {"1:hang-on-term", "0:exit:3"});
  slow.patience.alone = std::chrono::milliseconds(400);
  slow.patience.first_word = std::chrono::milliseconds(20);
  run(slow);
  EXPECT_THAT(told_, Contains(HasSubstr("rank 0 ended with exit code 3; waiting for rank 1 to end")));
}

}  // namespace
}  // namespace fsdp::launch
