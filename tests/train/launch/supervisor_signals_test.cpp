// Signals to the launcher: once, the ranks may save and leave; twice, they are killed.
#include <gmock/gmock.h>

#include "train/launch/launch_fixture.h"
#include "train/launch/launcher_process.h"

namespace fsdp::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SupervisorSignals : public LaunchTest {
 protected:
  // A launcher of two ranks that are about to do `action`.
  LauncherProcess start(const std::string& action) {
    return {2, {"*:pid:" + path("pid-"), "*:" + action}, path("output")};
  }
  void wait_for_ranks() {
    for (const char* name : {"pid-0", "pid-1"}) EXPECT_GT(pid_in(path(name)), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until they do their action
  }
  bool said(const std::string& words) {
    return wait_until([&] { return text_of(path("output")).find(words) != std::string::npos; });
  }
  std::string output() { return text_of(path("output")); }
};

TEST_F(SupervisorSignals, OnceAsksTheRanksAndTheirCodesCount) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    std::filesystem::remove(path("output"));
    LauncherProcess launcher = start("end-on-term:0");
    wait_for_ranks();
    launcher.signal(number);
    EXPECT_EQ(launcher.wait(), 0) << output();
    EXPECT_THAT(output(), HasSubstr("asked ranks 0, 1 to finish the step, save and leave"));
    EXPECT_THAT(output(), HasSubstr("SIGTERM came 1 time(s)\nSIGTERM came 1 time(s)\n"));
  }
}

TEST_F(SupervisorSignals, ExitCodeNamesTheSignalIfRanksDoNotHandleIt) {
  for (const int number : {SIGINT, SIGTERM}) {
    LauncherProcess launcher = start("hang");
    wait_for_ranks();
    launcher.signal(number);
    EXPECT_EQ(launcher.wait(), 128 + number) << output();
  }
  EXPECT_THAT(output(), HasSubstr("stopped by SIGTERM to the launcher\n"));
  EXPECT_THAT(output(), Not(HasSubstr("rank 0 of 2")));
}

TEST_F(SupervisorSignals, TwiceKillsTheRanks) {
  LauncherProcess launcher = start("hang-on-term");
  wait_for_ranks();
  launcher.signal(SIGINT);
  ASSERT_TRUE(said("A second signal kills them"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // longer than Patience::repeat
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  EXPECT_THAT(output(), HasSubstr("SIGINT again: killed ranks 0, 1"));
  for (const char* name : {"pid-0", "pid-1"}) EXPECT_FALSE(runs(pid_in(path(name))));
}

TEST_F(SupervisorSignals, StoppedRankIsContinuedToLeave) {
  LauncherProcess launcher = start("stop");
  const pid_t rank = pid_in(path("pid-0"));
  pid_in(path("pid-1"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_FALSE(runs(rank));
}

}  // namespace
}  // namespace fsdp::launch
