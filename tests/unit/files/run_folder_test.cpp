#include "files/run_folder.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "support/kill_files.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using detail::find_checkpoint;
using detail::Manifest;
using detail::posix_files;
using detail::RunFolder;
using detail::write_text;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Names = std::vector<std::string>;

class RunFolderTest : public ::testing::Test {
 protected:
  std::string save(int64_t step) {
    Manifest manifest;
    manifest.step = step;
    const std::string folder = run_.begin(step, "id");
    write_text(posix_files(), folder + "/data", std::to_string(step));
    return run_.commit(folder, step, manifest.to_text());
  }
  Names names() const {
    Names names;
    for (const RunFolder::Entry& one : run_.entries()) names.push_back(one.name);
    return names;
  }
  // Also the hidden ones.
  Names on_disk() const { return posix_files().list(path_); }
  std::string latest() const { return run_.latest() ? run_.latest()->name : "none"; }
  void set_latest(const std::string& name) {
    posix_files().remove_file(path_ + "/latest");
    write_text(posix_files(), path_ + "/latest", name);
  }

  TempFolder temp_;
  std::string path_ = temp_ / "run";
  RunFolder run_{posix_files(), path_};
};

// As on NFS, while another program has a file of it open.
TEST_F(RunFolderTest, WhatCannotBeDeletedYetStopsNoSave) {
  save(1);
  const std::string busy = path_ + "/.removing-step-00000000/busy";
  posix_files().make_folders(busy);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", busy.c_str(), "tmpfs", 0, nullptr) != 0)
      ::_exit(100);
    try {
      ::_exit(save(2) == "step-00000002" && std::filesystem::exists(busy) ? 0 : 2);
    } catch (const IoError&) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 100) GTEST_SKIP() << "only root may mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  save(3);
  EXPECT_FALSE(std::filesystem::exists(busy)) << "a later save deletes it";
}

TEST_F(RunFolderTest, ASavedCheckpointIsTheLatest) {
  EXPECT_EQ(latest(), "none");
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_EQ(save(1), "step-00000001");
  EXPECT_EQ(save(20), "step-00000020");
  EXPECT_EQ(save(123456789012), "step-123456789012");
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000020", "step-123456789012"));
  EXPECT_THAT(on_disk(), ElementsAre("latest", "step-00000001", "step-00000020", "step-123456789012"));
  EXPECT_EQ(latest(), "step-123456789012");
  EXPECT_EQ(find_checkpoint(posix_files(), path_).folder, path_ + "/step-123456789012");
  EXPECT_EQ(Manifest::parse(find_checkpoint(posix_files(), path_ + "/step-00000020").manifest_text, "m").step,
            20);
}

TEST_F(RunFolderTest, ALowerStepSavedLaterIsTheLatest) {
  save(20);
  save(10);
  EXPECT_EQ(latest(), "step-00000010");
  set_latest("step-00000020\n\n");
  EXPECT_EQ(latest(), "step-00000020");
}

TEST_F(RunFolderTest, ALatestThatNamesNothingIsTheHighestStep) {
  save(10);
  save(20);
  for (const char* name : {"", "step-00000030", "../../etc", "nonsense"}) {
    set_latest(name);
    EXPECT_EQ(latest(), "step-00000020");
  }
  posix_files().remove_file(path_ + "/latest");
  EXPECT_EQ(latest(), "step-00000020");
}

TEST_F(RunFolderTest, ALatestThatIsGoneIsPassedOverButADamagedOneIsNot) {
  save(10);
  save(20);
  posix_files().remove_file(path_ + "/step-00000020/manifest.json");
  EXPECT_THAT(
      [&] { find_checkpoint(posix_files(), path_); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("step-00000020, the latest checkpoint, has lost"),
                                           HasSubstr("such as " + path_ + "/step-00000010"))));
  remove_tree(posix_files(), path_ + "/step-00000020");
  EXPECT_EQ(find_checkpoint(posix_files(), path_).folder, path_ + "/step-00000010");
}

TEST_F(RunFolderTest, AStepSavedAgainIsAnotherGeneration) {
  EXPECT_EQ(save(5), "step-00000005");
  EXPECT_EQ(save(5), "step-00000005.1");
  EXPECT_EQ(save(5), "step-00000005.2");
  EXPECT_EQ(latest(), "step-00000005.2");
  EXPECT_EQ(detail::read_text(posix_files(), path_ + "/step-00000005/data", 10), "5");
  EXPECT_THAT(names(), ElementsAre("step-00000005", "step-00000005.1", "step-00000005.2"));
}

TEST_F(RunFolderTest, AGenerationIsNewerThanThoseThatWereRetired) {
  save(5);
  run_.retire(save(5), 1, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000005.1"));
  EXPECT_EQ(save(5), "step-00000005.2");
  posix_files().remove_file(path_ + "/latest");
  EXPECT_EQ(latest(), "step-00000005.2");
}

TEST_F(RunFolderTest, OtherNamesAreNoCheckpoints) {
  save(5);
  for (const char* name :
       {"step-5", "step-", "step-00000006x", "step-00000006.", "step-00000006.0", "step-00000006.01",
        "step--0000006", "step-99999999999999999999", ".saving-7-id", "epoch-00000006"}) {
    posix_files().make_folders(path_ + "/" + name);
    write_text(posix_files(), path_ + "/" + name + "/manifest.json", "");
  }
  posix_files().make_folders(path_ + "/step-00000009");  // no manifest
  EXPECT_THAT(names(), ElementsAre("step-00000005"));
  EXPECT_EQ(save(9), "step-00000009.1");
}

TEST_F(RunFolderTest, LeftoversOfStoppedSavesAreDeleted) {
  save(1);
  const std::string left = run_.begin(2, "stopped");
  write_text(posix_files(), left + "/data", "half");
  posix_files().make_folders(path_ + "/.removing-step-00000000/deep/deeper");
  write_text(posix_files(), path_ + "/.saving-latest", "step-00000002\n");
  write_text(posix_files(), path_ + "/.lock", "");
  write_text(posix_files(), path_ + "/.mine", "");
  write_text(posix_files(), path_ + "/notes", "");
  EXPECT_EQ(latest(), "step-00000001");
  save(2);
  EXPECT_THAT(on_disk(), ElementsAre(".lock", ".mine", "latest", "notes", "step-00000001", "step-00000002"));
}

TEST_F(RunFolderTest, RetireKeepsTheLastOnes) {
  for (int step = 1; step <= 6; ++step) save(step);
  run_.retire("step-00000006", 0, 0);
  EXPECT_EQ(names().size(), 6U);
  run_.retire("step-00000006", 3, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000004", "step-00000005", "step-00000006"));
  run_.retire("step-00000006", 1, 0);
  EXPECT_THAT(on_disk(), ElementsAre("latest", "step-00000006"));
}

TEST_F(RunFolderTest, RetireKeepsEveryNth) {
  for (int step = 1; step <= 9; ++step) save(step);
  run_.retire("step-00000009", 2, 4);
  EXPECT_THAT(names(), ElementsAre("step-00000004", "step-00000008", "step-00000009"));
}

TEST_F(RunFolderTest, RetireNeverDeletesALaterStep) {
  for (const int step : {10, 20, 30, 15}) save(step);
  run_.retire("step-00000015", 1, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000015", "step-00000020", "step-00000030"));
}

TEST_F(RunFolderTest, RetireNeverDeletesTheLatest) {
  for (const int step : {1, 2, 3}) save(step);
  set_latest("step-00000001");
  run_.retire("step-00000003", 1, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000003"));
  run_.retire("nonsense", 1, 0);
  run_.retire("", 1, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000003"));
}

TEST_F(RunFolderTest, OfAStepThatWasSavedAgainTheLastCounts) {
  for (const int step : {4, 4, 5, 5, 6, 7}) save(step);
  run_.retire("step-00000007", 2, 4);
  EXPECT_THAT(names(), ElementsAre("step-00000004.1", "step-00000006", "step-00000007"));
  save(7);
  run_.retire(save(7), 2, 0);
  EXPECT_THAT(names(), ElementsAre("step-00000006", "step-00000007.2"));
}

TEST_F(RunFolderTest, ALinkToARunIsThatRun) {
  save(1);
  ASSERT_EQ(::symlink(path_.c_str(), (temp_ / "link").c_str()), 0);
  RunFolder linked(posix_files(), temp_ / "link");
  ASSERT_TRUE(linked.latest());
  EXPECT_EQ(linked.latest()->name, "step-00000001");
  EXPECT_EQ(find_checkpoint(posix_files(), temp_ / "link").folder, temp_ / "link/step-00000001");
  linked.begin(2, "id");
}

TEST_F(RunFolderTest, AFolderBelowOthersThatAreMissingIsMade) {
  RunFolder deep(posix_files(), temp_ / "a/b/c/");
  EXPECT_NE(deep.lock(), nullptr);
  EXPECT_TRUE(posix_files().is_folder(deep.begin(1, "id")));
}

TEST_F(RunFolderTest, SaysWhatAPathIsInstead) {
  const auto refused = [](const std::string& path, const std::string& why) {
    EXPECT_THAT([&] { find_checkpoint(posix_files(), path); },
                ThrowsMessage<CheckpointError>(HasSubstr(why)));
  };
  refused(path_, "does not exist");
  posix_files().make_folders(path_);
  refused(path_, "no folder step-<number>");
  write_text(posix_files(), temp_ / "model.pt", "");
  refused(temp_ / "model.pt", "is a file; a checkpoint is a folder");
}

// In another process: 0 if it gets the lock, 1 if another holds it.
int lock_elsewhere(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(RunFolder(posix_files(), path).lock() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(RunFolderTest, TheLockIsAgainstOtherProcesses) {
  EXPECT_EQ(lock_elsewhere(path_), 0);
  auto held = run_.lock();
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(lock_elsewhere(path_), 1);
  EXPECT_EQ(RunFolder(posix_files(), path_).lock(), nullptr);
  save(1);
  EXPECT_EQ(lock_elsewhere(path_), 1);
  held.reset();
  EXPECT_EQ(lock_elsewhere(path_), 0);
}

TEST_F(RunFolderTest, AKilledHolderLeavesNoLock) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = run_.lock();
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  EXPECT_EQ(run_.lock(), nullptr);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(run_.lock(), nullptr);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunFolderTest, AForkedChildDoesNotHoldTheLock) {
  auto held = run_.lock();
  ASSERT_NE(held, nullptr);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  EXPECT_EQ(lock_elsewhere(path_), 1) << "a child takes nothing from its parent";
  held.reset();
  EXPECT_EQ(lock_elsewhere(path_), 0) << "the child keeps the lock";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunFolderTest, ACommitThatFailsLeavesNoCheckpoint) {
  save(1);
  const auto commit = [&](KillFiles& files, int64_t step) {
    const std::string begun = run_.begin(step, "id");
    Manifest manifest;
    manifest.step = step;
    RunFolder(files, path_).commit(begun, step, manifest.to_text());
  };
  KillFiles counting(posix_files(), {}, KillFiles::fail(ENOSPC));
  commit(counting, 2);
  const int64_t last_sync = counting.operations() - 1;
  ASSERT_GT(last_sync, 5);
  for (int64_t n = 0; n < last_sync; ++n) {
    KillFiles failing(posix_files(), {.operation = n}, KillFiles::fail(ENOSPC));
    EXPECT_THROW(commit(failing, 3), IoError) << n;
    EXPECT_EQ(latest(), "step-00000002") << n;
    EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000002")) << n;
  }
  KillFiles failing(posix_files(), {.operation = last_sync}, KillFiles::fail(EIO));
  EXPECT_THROW(commit(failing, 3), IoError);
  EXPECT_EQ(latest(), "step-00000003") << "whole, and the disk has it or not";
}

}  // namespace
}  // namespace fsdp::testing
