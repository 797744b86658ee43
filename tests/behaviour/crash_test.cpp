// Promise: a save that stops at any point, because its process is killed, the machine loses power or the disk
// fails, leaves the old checkpoint or the new one, whole; and the next save works and cleans up.
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iostream>
#include <random>
#include <set>

#include "files/hash128.h"
#include "files/run_folder.h"
#include "support/kill_files.h"
#include "support/repeats.h"
#include "support/sim_files.h"
#include "support/small_checkpoint.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using detail::FileOps;
using detail::posix_files;
using detail::RunFolder;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using When = KillPoint::When;

// The save under test, and what is there before it.
struct Scenario {
  std::string name;
  std::vector<SmallSave> before;
  SmallSave save;
  std::string folder = "/run";  // below the folder of the test
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const int world : {1, 2, 3, 5}) {
    const std::string ranks = ", " + std::to_string(world) + " ranks";
    const SmallSave one{.step = 1, .seed = 1, .world = 2}, two{.step = 2, .seed = 2, .world = world};
    all.push_back({.name = "the next step" + ranks, .before = {one}, .save = two});
    SmallSave again = two;
    again.step = 1;
    all.push_back({.name = "a step again" + ranks, .before = {one}, .save = again});
    SmallSave retiring = two;
    retiring.keep_last = 2;
    all.push_back(
        {.name = "one is retired" + ranks, .before = {{.step = 0, .seed = 3}, one}, .save = retiring});
    all.push_back({.name = "an earlier step" + ranks, .before = {{.step = 9, .seed = 3}}, .save = retiring});
    all.push_back({.name = "after going back" + ranks, .before = {{.step = 9, .seed = 3}, one}, .save = two});
    all.push_back({.name = "the first" + ranks, .before = {}, .save = two, .folder = "/runs/new/run"});
  }
  return all;
}

void prepare(FileOps& files, const std::string& root, const Scenario& scenario) {
  if (!scenario.before.empty()) files.make_folders(root);
  for (const SmallSave& save : scenario.before) save_small(files, root + scenario.folder, save);
}

SmallContents contents_of(const SmallSave& save) { return small_contents(save.step, save.seed); }

// What a load of the run's folder gives; none if there is nothing.
std::optional<SmallContents> loaded(FileOps& files, const std::string& run) {
  if (!RunFolder(files, run).latest()) return std::nullopt;
  return load_small(files, run);
}

// Every checkpoint one can see is whole, and the latest is one of those that it may be.
void expect_sound(FileOps& files, const std::string& run, const std::vector<SmallSave>& may_be_there,
                  const std::vector<SmallSave>& may_be_latest, bool may_be_none) {
  for (const RunFolder::Entry& entry : RunFolder(files, run).entries()) {
    const SmallContents found = load_small(files, run + "/" + entry.name);
    EXPECT_TRUE(std::any_of(may_be_there.begin(), may_be_there.end(),
                            [&](const SmallSave& save) { return contents_of(save) == found; }))
        << entry.name << " is none of those that were saved";
  }
  const auto latest = loaded(files, run);
  if (!latest) {
    EXPECT_TRUE(may_be_none) << "no checkpoint is left";
    return;
  }
  EXPECT_TRUE(std::any_of(may_be_latest.begin(), may_be_latest.end(),
                          [&](const SmallSave& save) { return contents_of(save) == *latest; }))
      << "the latest is step " << latest->step << ", " << latest->id;
}

// The next save works, and leaves nothing of stopped ones.
void expect_next_save(FileOps& files, const std::string& run) {
  const SmallSave next{.step = 50, .seed = 50, .world = 2, .keep_last = 2};
  save_small(files, run, next);
  EXPECT_EQ(load_small(files, run), contents_of(next));
  const std::vector<std::string> names = files.list(run);
  EXPECT_THAT(names, Not(Contains(StartsWith(".saving"))));
  EXPECT_THAT(names, Not(Contains(StartsWith(".removing"))));
}

// After the save of a scenario stopped: sound, and goes on.
void expect_recovers(FileOps& files, const std::string& root, const Scenario& scenario, bool finished) {
  const std::string run = root + scenario.folder;
  std::vector<SmallSave> all = scenario.before;
  all.push_back(scenario.save);
  std::vector<SmallSave> latest{scenario.save};
  if (!finished && !scenario.before.empty()) latest.push_back(scenario.before.back());
  expect_sound(files, run, all, latest, scenario.before.empty() && !finished);
  expect_next_save(files, run);
}

std::string to_text(const KillPoint& point) {
  const char* when = point.when == When::before ? "before" : point.when == When::after ? "after" : "in";
  return std::string(when) + " operation " + std::to_string(point.operation);
}

// Whether it was thrown says that the save did not come to its end.
struct Stopped {};
KillFiles::Strike stop() {
  return [](const std::string& /*doing*/, const std::string& /*path*/) { throw Stopped(); };
}

// False: it came to its end.
bool stopped_at(FileOps& files, const std::string& run, const SmallSave& save, const KillPoint& point) {
  KillFiles striking(files, point, stop());
  try {
    save_small(striking, run, save);
  } catch (const Stopped&) {
  }
  return striking.struck();
}

int64_t operations_of(const Scenario& scenario, KillFiles::Count count) {
  SimFiles disk;
  prepare(disk, "", scenario);
  KillFiles counting(disk, {}, stop(), count);
  save_small(counting, scenario.folder, scenario.save);
  return counting.operations();
}

std::vector<KillPoint> points_of(const Scenario& scenario) {
  std::vector<KillPoint> points;
  for (int64_t n = 0; n < operations_of(scenario, KillFiles::Count::changes); ++n) {
    points.push_back({.operation = n, .when = When::before});
    points.push_back({.operation = n, .when = When::after});
    for (const double part : {0.0, 0.3, 0.9})
      points.push_back({.operation = n, .when = When::torn, .part = part});
  }
  return points;
}

// One in `of` under `make test`, all of them under FSDP_LONG=1.
class Sample {
 public:
  explicit Sample(int of) : of_(static_cast<unsigned>(repeats(of, 1))), random_(seed()) {}
  bool operator()() { return random_() % of_ == 0; }

 private:
  unsigned of_;
  std::mt19937 random_;
};

// Where files are fastest: what is killed is the process, so no disk is needed.
std::string fast_folder() { return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; }

// The signal that ended a process that saves, 0 if it came to its end.
int killed_by(const std::string& run, const SmallSave& save, const KillPoint& point) {
  const pid_t child = ::fork();
  if (child == 0) {
    KillFiles killing(posix_files(), point, KillFiles::kill());
    try {
      save_small(killing, run, save);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "the save failed";
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(Crash, AKilledProcessLeavesTheOldOrTheNewCheckpoint) {
  Sample sampled(20);
  int kills = 0;
  for (const Scenario& scenario : scenarios())
    for (const KillPoint& point : points_of(scenario)) {
      if (!sampled()) continue;
      SCOPED_TRACE(scenario.name + ", killed " + to_text(point));
      const TempFolder root(fast_folder());
      prepare(posix_files(), root.path(), scenario);
      const int signal = killed_by(root.path() + scenario.folder, scenario.save, point);
      if (signal != 0) {
        EXPECT_EQ(signal, SIGKILL);
        ++kills;
      }
      expect_recovers(posix_files(), root.path(), scenario, signal == 0);
      if (HasFailure()) return;
    }
  std::cout << "killed: " << kills << " points\n";
  EXPECT_GT(kills, repeats(30, 1500));
}

// Saves step after step; writes each to `done` when it is saved.
[[noreturn]] void save_for_ever(const std::string& run, int done) {
  for (unsigned step = 1;; ++step) {
    save_small(posix_files(), run, {.step = step, .seed = step, .world = 2, .keep_last = 2});
    if (::write(done, &step, sizeof step) != sizeof step) ::_exit(1);
  }
}

// Not between operations, but at any time: also inside the kernel.
TEST(Crash, AProcessKilledAtAnyTimeLeavesItsLastSaveOrTheNext) {
  std::mt19937 random(seed());
  const int kills = repeats(20, 1000);
  for (int i = 0; i < kills; ++i) {
    const TempFolder root(fast_folder());
    int done[2];
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(root / "run", done[1]);
    ::close(done[1]);
    ::usleep(static_cast<useconds_t>(3000 + random() % 8000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    unsigned saved = 0;
    for (unsigned step = 0; ::read(done[0], &step, sizeof step) == sizeof step;) saved = step;
    ::close(done[0]);
    const auto latest = loaded(posix_files(), root / "run");
    SCOPED_TRACE("saved " + std::to_string(saved) + ", found " + std::to_string(latest ? latest->step : 0));
    ASSERT_TRUE(latest || saved == 0);
    if (latest) {
      EXPECT_TRUE(latest->step == saved || latest->step == saved + 1);
      EXPECT_EQ(*latest, small_contents(latest->step, static_cast<unsigned>(latest->step)));
    }
    for (const RunFolder::Entry& entry : RunFolder(posix_files(), root / "run").entries())
      EXPECT_EQ(load_small(posix_files(), (root / "run/") + entry.name),
                small_contents(entry.step, static_cast<unsigned>(entry.step)));
    save_small(posix_files(), root / "run", {.step = 100000, .seed = 5});
    if (HasFailure()) return;
  }
  std::cout << "killed at any time: " << kills << " times\n";
}

// What is on the disk, as a number.
std::string state_of(const SimFiles& disk) {
  std::string text;
  for (const auto& [path, data] : disk.all()) text += path + '\n' + to_hex(detail::hash128(data)) + '\n';
  return to_hex(detail::hash128(text));
}

TEST(Crash, ALossOfPowerLeavesTheOldOrTheNewCheckpoint) {
  Sample sampled(10);
  int losses = 0;
  std::set<std::string> states;
  for (const Scenario& scenario : scenarios())
    for (const KillPoint& point : points_of(scenario)) {
      const bool small = scenario.save.world == 1 && point.when == When::before;  // all of these, always
      if (!small && !sampled()) continue;
      SimFiles disk;
      prepare(disk, "", scenario);
      disk.sync_folder("/");
      if (!stopped_at(disk, scenario.folder, scenario.save, point)) continue;
      for (int i = 0; i < repeats(small ? 32 : 4, 32); ++i) {
        const auto seed = static_cast<unsigned>(losses);
        SCOPED_TRACE(scenario.name + ", power lost " + to_text(point) + ", seed " + std::to_string(seed));
        SimFiles after = disk;
        after.lose_power(seed);
        states.insert(scenario.name + state_of(after));
        expect_recovers(after, "", scenario, false);
        ++losses;
        if (HasFailure()) return;
      }
    }
  std::cout << "power losses: " << losses << " points, " << states.size() << " different disks\n";
  EXPECT_GT(losses, repeats(500, 10000));
}

TEST(Crash, WhatWasSavedOutlivesALossOfPower) {
  const int seeds = repeats(20, 200);
  int losses = 0;
  for (const Scenario& scenario : scenarios())
    for (int seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE(scenario.name + ", seed " + std::to_string(seed));
      SimFiles disk;
      prepare(disk, "", scenario);
      save_small(disk, scenario.folder, scenario.save);
      disk.lose_power(static_cast<unsigned>(seed));
      expect_recovers(disk, "", scenario, true);
      ++losses;
      if (HasFailure()) return;
    }
  std::cout << "power losses after a save: " << losses << " points\n";
}

// A save is killed, and while the next one runs the power is lost.
TEST(Crash, LeftoversAreNoDangerToTheNextSave) {
  const Scenario scenario{.name = "leftovers",
                          .before = {{.step = 0, .seed = 3}, {.step = 1, .seed = 1}},
                          .save = {.step = 2, .seed = 2, .world = 2, .keep_last = 2}};
  const SmallSave third{.step = 3, .seed = 4, .world = 2, .keep_last = 2};
  std::vector<SmallSave> all = scenario.before;
  all.insert(all.end(), {scenario.save, third});
  std::vector<KillPoint> points = points_of(scenario);
  std::erase_if(points, [](const KillPoint& point) { return point.when == When::torn && point.part != 0.4; });
  Sample sampled(40);
  int losses = 0;
  for (const KillPoint& first : points)
    for (const KillPoint& second : points) {
      if (!sampled()) continue;
      SimFiles disk;
      prepare(disk, "", scenario);
      disk.sync_folder("/");
      if (!stopped_at(disk, "/run", scenario.save, first)) continue;
      SCOPED_TRACE("killed " + to_text(first) + ", power lost " + to_text(second));
      expect_sound(disk, "/run", all, {scenario.before.back(), scenario.save}, false);
      if (!stopped_at(disk, "/run", third, second)) continue;
      for (int i = 0; i < 2; ++i) {
        SimFiles after = disk;
        after.lose_power(static_cast<unsigned>(losses));
        expect_sound(after, "/run", all, {scenario.before.back(), scenario.save, third}, false);
        expect_next_save(after, "/run");
        ++losses;
      }
      if (HasFailure()) return;
    }
  std::cout << "killed, then power lost: " << losses << " points\n";
}

TEST(Crash, AnErrorOfTheDiskIsAnErrorWithPathAndReason) {
  Sample sampled(4);
  int errors = 0;
  for (const Scenario& scenario : scenarios())
    for (int64_t n = 0; n < operations_of(scenario, KillFiles::Count::reads_too); ++n)
      for (const int code : {ENOSPC, EIO, EROFS})
        for (const When when : {When::before, When::torn}) {
          if (!sampled()) continue;
          SCOPED_TRACE(scenario.name + ", " + std::strerror(code) + " at operation " + std::to_string(n));
          SimFiles disk;
          prepare(disk, "", scenario);
          KillFiles failing(disk, {.operation = n, .when = when}, KillFiles::fail(code),
                            KillFiles::Count::reads_too);
          bool thrown = false;
          try {
            save_small(failing, scenario.folder, scenario.save);
          } catch (const IoError& error) {
            thrown = true;
            EXPECT_EQ(error.code(), code);
            EXPECT_THAT(error.path(), StartsWith("/"));
            EXPECT_THAT(error.what(), HasSubstr(error.path()));
            EXPECT_THAT(error.what(), HasSubstr(std::strerror(code)));
          }
          EXPECT_EQ(thrown, failing.struck()) << "an error was swallowed";
          errors += failing.struck() ? 1 : 0;
          expect_recovers(disk, "", scenario, !thrown);
          if (HasFailure()) return;
        }
  std::cout << "errors of the disk: " << errors << " points\n";
}

}  // namespace
}  // namespace fsdp::testing
