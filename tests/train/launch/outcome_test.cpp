// Which failure is the cause, the exit code, and what the user reads.
#include "app/launch/outcome.h"

#include <gmock/gmock.h>

#include <csignal>

namespace fsdp::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

RankEnd ended(int rank, int code, EndKind kind = EndKind::own) {
  RankEnd end{.rank = rank, .exit_code = code, .kind = kind};
  if (code > 128) end.signal = code - 128;
  return end;
}

Outcome outcome_of(std::vector<RankEnd> ends) {
  return {.ends = std::move(ends), .world_size = 4, .host = "node7"};
}

TEST(Outcome, NoFailureIsNoCause) {
  const Outcome outcome = outcome_of({ended(1, 0), ended(0, 0)});
  EXPECT_EQ(outcome.cause(), nullptr);
  EXPECT_EQ(outcome.exit_code(), 0);
  EXPECT_EQ(report(outcome), "");
}

TEST(Outcome, FirstOwnFailureIsTheCause) {
  const Outcome outcome = outcome_of({ended(3, 0), ended(2, 3), ended(1, 9)});
  EXPECT_EQ(outcome.cause()->rank, 2);
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_THAT(report(outcome), StartsWith("rank 2 of 4 on node7 ended with exit code 3\n"));
}

TEST(Outcome, RankThatBlamesAnotherIsNotTheCause) {
  RankEnd first = ended(0, 5, EndKind::peer);
  first.culprit = 2;
  const Outcome outcome = outcome_of({first, ended(2, 128 + SIGSEGV), ended(1, 137, EndKind::killed)});
  EXPECT_EQ(outcome.cause()->rank, 2);
  EXPECT_EQ(outcome.exit_code(), 139);
  const std::string text = report(outcome);
  EXPECT_THAT(text, StartsWith("rank 2 of 4 on node7 crashed with SIGSEGV (signal 11): "));
  EXPECT_LT(text.find("rank 2"), text.find("then rank 0 ended with exit code 5"));
  EXPECT_THAT(text, HasSubstr("then rank 1 was killed by the launcher"));
}

TEST(Outcome, RanksThatBlameEachOther) {
  RankEnd first = ended(0, 5, EndKind::peer), second = ended(2, 5, EndKind::peer);
  first.culprit = 2;
  second.culprit = 1;
  EXPECT_EQ(outcome_of({first, second}).cause()->rank, 2) << "the blamed one is nearer to the cause";
  EXPECT_THAT(report(outcome_of({first})),
              StartsWith("rank 0 of 4 on node7 ended with exit code 5, because of rank 2\n"));
}

TEST(Outcome, StoppedRankIsTheCauseOfWhatItsPeersReport) {
  const Outcome outcome = outcome_of({ended(0, 5, EndKind::peer), ended(1, 137, EndKind::stopped)});
  EXPECT_EQ(outcome.cause()->rank, 1);
  EXPECT_THAT(report(outcome), StartsWith("rank 1 of 4 on node7 was stopped (SIGSTOP or a debugger)"));
}

TEST(Outcome, ReportShowsTheMessageElseTheLastLines) {
  RankEnd cause = ended(1, 1);
  cause.last_lines = {"Traceback", "KeyError: 'x'"};
  cause.log = "logs/rank-1.log";
  const std::string lines = report(outcome_of({cause}));
  EXPECT_THAT(lines, HasSubstr("  [rank 1] Traceback\n  [rank 1] KeyError: 'x'\n"));
  EXPECT_THAT(lines, HasSubstr("All of its output: logs/rank-1.log\n"));
  cause.message = "no data\nin\x1b[2J step 3";
  const std::string message = report(outcome_of({cause}));
  EXPECT_THAT(message, HasSubstr("  [rank 1] no data\n  [rank 1] in?[2J step 3\n"));
  EXPECT_EQ(message.find("Traceback"), std::string::npos);
}

TEST(Outcome, EqualFailuresShareALine) {
  const Outcome outcome = outcome_of(
      {ended(2, 3), ended(0, 5, EndKind::peer), ended(1, 5, EndKind::peer), ended(3, 143, EndKind::asked)});
  EXPECT_THAT(report(outcome), HasSubstr("then ranks 0, 1 ended with exit code 5\n"));
  EXPECT_THAT(report(outcome), HasSubstr("then rank 3 was ended by the launcher's SIGTERM\n"));
}

TEST(Outcome, SignalToTheLauncher) {
  Outcome outcome = outcome_of({ended(0, 143, EndKind::asked), ended(1, 143, EndKind::asked)});
  outcome.interrupted_by = SIGINT;
  EXPECT_EQ(outcome.exit_code(), 130);
  EXPECT_EQ(report(outcome), "stopped by SIGINT to the launcher\n");
  outcome.ends = {ended(0, 0), ended(1, 0)};
  EXPECT_EQ(outcome.exit_code(), 0) << "the ranks saved and left";
  outcome.ends = {ended(0, 0), ended(1, 7)};
  EXPECT_EQ(outcome.exit_code(), 7) << "a rank that could not save";
  outcome.abandoned = true;
  outcome.ends = {ended(0, 137, EndKind::killed)};
  EXPECT_EQ(outcome.exit_code(), 130);
  EXPECT_THAT(report(outcome), HasSubstr("sent twice: the ranks were killed"));
}

TEST(Outcome, RanksThatSavedAskToBeStartedAgain) {
  Outcome outcome = outcome_of({ended(1, kRequeue), ended(0, kRequeue)});
  outcome.interrupted_by = SIGTERM;
  EXPECT_EQ(outcome.exit_code(), kRequeue);
  EXPECT_EQ(report(outcome), "");
  outcome.interrupted_by = SIGINT;
  EXPECT_EQ(outcome.exit_code(), 0) << "Ctrl-C: a person wants it to end";
  EXPECT_EQ(report(outcome), "");
  outcome.ends.push_back(ended(2, 7));
  EXPECT_EQ(outcome.exit_code(), 7) << "a rank that could not save, though another ended before";
  EXPECT_THAT(report(outcome), StartsWith("rank 2 of 4 on node7 ended with exit code 7"));
}

TEST(Outcome, NamesRanks) {
  EXPECT_EQ(name_ranks({5}), "rank 5");
  EXPECT_EQ(name_ranks({1, 0}), "ranks 0, 1");
  EXPECT_EQ(name_ranks({7, 0, 1, 4, 5, 6}), "ranks 0, 1, 4-7");
}

}  // namespace
}  // namespace fsdp::launch
