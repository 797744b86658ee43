// Promise: a rank that hangs while a checkpoint is saved ends the others after the time that ranks wait for
// each other; ranks that are slow together, save and evaluate are no reason for an alarm.
#include "behaviour/small_net.h"
#include "behaviour/waiting_gang.h"
#include "support/slow_files.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr seconds kTimeout{4};
constexpr seconds kBound{40};  // ten times the goal; SaveOptions::timeout is 30 minutes

struct Training {
  explicit Training(World& world)
      : model([&] {
          set_wait_timeout(world, kTimeout);
          ShardOptions options = sharded_by(by_type<BlockImpl>());
          options.comm.timeout = kTimeout;
          return fully_shard(world, make_same_net(), options);
        }()),
        optimizer(model.parameters(), AdamWOptions(1e-3)) {}
  void step(World& world, int number) {
    note_step(world, number);
    loss_of(model(net_batch(number))).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  RunState run(int64_t step) { return {.model = model, .optimizer = &optimizer, .step = step}; }

  Sharded<NetImpl> model;
  AdamW optimizer;
};

// Rank 1 hangs by `hang` in `where`; rank 0 must end soon, and name it.
void check_hang(const std::function<void(World&, Training&, BackgroundSaver&)>& body,
                const std::string& words) {
  const TempFolder folder;
  Gang gang(2, Reach::one_host, [&](World& world) {
    SlowFiles files;
    Training training(world);
    for (int step = 1; step <= 3; ++step) training.step(world, step);
    files.milliseconds = 1000;
    BackgroundSaver saver(folder / "run", {}, INT64_MAX, files);
    body(world, training, saver);
  });
  ASSERT_TRUE(gang.ends(0, kBound)) << gang.log();
  EXPECT_THAT(gang.ranks().outcome(0).error, AllOf(HasSubstr("rank 1 (host "), HasSubstr(words)));
}

TEST(WaitingSave, ARankStoppedInTrainingDuringABackgroundSave) {
  check_hang(
      [](World& world, Training& training, BackgroundSaver& saver) {
        saver.save(training.run(3));
        if (world.rank() == 1) stop_myself();
        for (int step = 4; step <= 100; ++step) training.step(world, step);
      },
      "its process is stopped");
}

TEST(WaitingSave, ARankStoppedWhileOthersWaitForTheBackgroundSave) {
  check_hang(
      [](World& world, Training& training, BackgroundSaver& saver) {
        saver.save(training.run(3));
        if (world.rank() == 1) stop_myself();
        (void)saver.wait();
      },
      "its process is stopped");
}

TEST(WaitingSave, ARankThatLoopsDuringABackgroundSave) {
  check_hang(
      [](World& world, Training& training, BackgroundSaver& saver) {
        saver.save(training.run(3));
        if (world.rank() == 1) loop_for_ever();
        for (int step = 4; step <= 100; ++step) training.step(world, step);
      },
      "step 3");
}

TEST(WaitingSave, ARankStoppedBeforeASave) {
  check_hang(
      [](World& world, Training& training, BackgroundSaver&) {
        const TempFolder folder;
        if (world.rank() == 1) stop_myself();
        save(folder / "run", training.run(3));
      },
      "its process is stopped");
}

TEST(WaitingSave, ARankThatNeverComesToASave) {
  check_hang(
      [](World& world, Training& training, BackgroundSaver&) {
        const TempFolder folder;
        if (world.rank() == 1) loop_for_ever();
        save(folder / "run", training.run(3));
      },
      "outside the model, after its 3rd backward");
}

// FSDP_LONG=1: 1,000 steps.
TEST(WaitingCalm, NoFalseAlarm) {
  const char* is_long = std::getenv("FSDP_LONG");
  const int steps = is_long != nullptr && std::string(is_long) == "1" ? 1000 : 60;
  const TempFolder folder;
  Gang gang(3, Reach::one_host, [&](World& world) {
    SlowFiles files;
    Training training(world);
    BackgroundSaver saver(folder / "later", {.keep_last = 2}, INT64_MAX, files);
    for (int step = 1; step <= steps; ++step) {
      // The data is slow for all ranks, though not for all alike.
      if (step % 30 == 0) std::this_thread::sleep_for(milliseconds(2500 + 400 * world.rank()));
      training.step(world, step);
      files.milliseconds = world.rank() == 1 ? 1500 : 0;  // one rank's disk is slow
      if (step % 40 == 0) saver.save(training.run(step));
      if (step == 50) save(folder / "now", training.run(step));
      if (step % 20 != 0) continue;
      const torch::NoGradGuard no_grad;
      double loss = 0;
      for (int i = 0; i < 20; ++i) loss += loss_of(training.model(net_batch(i))).item<double>();
      (void)world.mean(loss);
    }
    (void)saver.wait();
  });
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(gang.ends(rank, seconds(steps > 100 ? 1500 : 100))) << gang.log();
    EXPECT_EQ(gang.ranks().outcome(rank).error, "");
  }
  EXPECT_EQ(gang.log().find("wait"), std::string::npos) << gang.log();
}

}  // namespace
}  // namespace fsdp::testing
