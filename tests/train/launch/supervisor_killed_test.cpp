// A launcher that is killed leaves no rank, nothing that a rank started, and no file.
#include <gtest/gtest.h>

#include <cstdlib>

#include "train/launch/launch_fixture.h"
#include "train/launch/launcher_process.h"

namespace fsdp::launch {
namespace {

class SupervisorKilled : public LaunchTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(path("tmp"));
    ::setenv("TMPDIR", path("tmp").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("TMPDIR"); }
};

TEST_F(SupervisorKilled, NothingOutlivesIt) {
  LauncherProcess launcher(2, {"*:child:" + path("child-"), "*:pid:" + path("pid-"), "*:hang-on-term"},
                           path("output"));
  std::vector<pid_t> all;
  for (const char* name : {"pid-0", "pid-1", "child-0", "child-1"}) all.push_back(pid_in(path(name)));
  for (const pid_t pid : all) ASSERT_TRUE(runs(pid));
  EXPECT_FALSE(std::filesystem::is_empty(path("tmp"))) << "the folder of the error files";
  launcher.signal(SIGKILL);
  EXPECT_EQ(launcher.wait(), 137);
  for (const pid_t pid : all) EXPECT_TRUE(wait_until([&] { return !runs(pid); })) << "process " << pid;
  EXPECT_TRUE(wait_until([&] { return std::filesystem::is_empty(path("tmp")); }));
}

}  // namespace
}  // namespace fsdp::launch
