// Promise: ranks that wait for one that hangs say soon which it is and where, and end with the same words.
#include <ATen/ATen.h>

#include "base/log.h"
#include "behaviour/small_net.h"
#include "behaviour/waiting_gang.h"
#include "comm/gloo/gloo.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// `size` ranks sum numbers, step after step; `between` runs before a step's sum.
Gang sums(Reach reach, int size, int steps, milliseconds timeout,
          const std::function<void(World&, int)>& between) {
  return Gang(size, reach, [=](World& world) {
    set_wait_timeout(world, timeout);
    Comm comm = Comm::create(world, reach_options(reach, timeout));
    try {
      for (int step = 1; step <= steps; ++step) {
        note_step(world, step);
        between(world, step);
        comm.all_reduce(at::ones({8}), ReduceOp::sum, "loss").wait();
        // Beats go to other hosts twice a second.
        std::this_thread::sleep_for(milliseconds(reach == Reach::one_host ? 5 : 100));
      }
    } catch (const CommError& error) {
      detail::log_warn(std::string("ended by ") + to_string(error.details().fault) + ": " + error.what());
      if (reach != Reach::c10d_hosts) throw;
      std::_Exit(1);  // c10d's gloo would wait for its threads, which wait for the rank
    }
  });
}

// What others last saw of a rank that hung in a step: on another host that may be an earlier one.
std::string at_step(Reach reach, int step) {
  return "at step " + (reach == Reach::one_host ? std::to_string(step) : "[0-9]+") + ";";
}
// Words about a rank that does not run.
std::string stopped_words(Reach reach) {
  return reach == Reach::one_host ? "its process is stopped" : "it has given no sign of life for";
}

void check_end_of_stopped(Reach reach) {
  Gang gang = sums(reach, 3, 1000, seconds(6), [](World& world, int step) {
    if (world.rank() == 1 && step == 10) stop_myself();
  });
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(gang.ends(rank, seconds(40))) << gang.log();
    EXPECT_THAT(gang.log(),
                ContainsRegex("\\[" + std::to_string(rank) + "\\] ended by timeout: .*rank 1 \\(host .*" +
                              at_step(reach, 10) + ".*all_reduce 'loss'.*" + stopped_words(reach)));
  }
  EXPECT_EQ(gang.count(kAlarm), 1) << gang.log();
  EXPECT_EQ(gang.count("goes on"), 0) << gang.log();
}

class Waiting : public ::testing::TestWithParam<Reach> {
 protected:
  void SetUp() override {
    if (GetParam() == Reach::hosts && !detail::gloo_available())
      GTEST_SKIP() << "missing package: gloo's headers";
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, Waiting, ::testing::Values(Reach::one_host, Reach::hosts),
                         [](const auto& info) { return info.param == Reach::hosts ? "Hosts" : "OneHost"; });

TEST_P(Waiting, NamesAStoppedRankUntilItGoesOn) {
  Gang gang = sums(GetParam(), 3, 60, seconds(100), [](World& world, int step) {
    if (world.rank() == 2 && step == 20) stop_myself();
  });
  ASSERT_TRUE(gang.says(kAlarm)) << gang.log();
  EXPECT_THAT(gang.log(), AllOf(HasSubstr("[0] rank 0 has waited since"), HasSubstr(" for rank 2 (host "),
                                ContainsRegex("which is " + at_step(GetParam(), 20)),
                                HasSubstr("last collective was all_reduce 'loss'")));
  if (GetParam() == Reach::one_host) {
    EXPECT_THAT(gang.log(), HasSubstr(stopped_words(GetParam())));
  }
  std::this_thread::sleep_for(seconds(2));
  EXPECT_EQ(gang.count(kAlarm), 1) << gang.log();
  gang.ranks().signal(2, SIGCONT);
  EXPECT_TRUE(gang.says(" goes on, after ")) << gang.log();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(gang.ends(rank, seconds(30))) << gang.log();
    EXPECT_EQ(gang.ranks().outcome(rank).error, "");
  }
  EXPECT_EQ(gang.count(kAlarm), 1) << gang.log();
}

TEST_P(Waiting, EndsWithTheSameWordsIfTheRankStaysStopped) { check_end_of_stopped(GetParam()); }

TEST(WaitingC10d, EndsWithTheSameWordsIfTheRankStaysStopped) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: gloo's headers";
  check_end_of_stopped(Reach::c10d_hosts);
}

TEST_P(Waiting, NamesARankInAnEndlessLoop) {
  Gang gang = sums(GetParam(), 3, 1000, seconds(6), [](World& world, int step) {
    if (world.rank() == 0 && step == 10) loop_for_ever();
  });
  ASSERT_TRUE(gang.says(kAlarm)) << gang.log();
  EXPECT_THAT(gang.log(), AllOf(HasSubstr("[1] rank 1 has waited"), HasSubstr(" for rank 0 (host "),
                                Not(HasSubstr(stopped_words(GetParam())))));
  EXPECT_THAT(gang.log(), ContainsRegex(at_step(GetParam(), 10)));
  for (const int rank : {1, 2}) {
    ASSERT_TRUE(gang.ends(rank, seconds(40))) << gang.log();
    EXPECT_THAT(gang.log(),
                ContainsRegex("\\[" + std::to_string(rank) + "\\] ended by timeout: .*rank 0 \\(host .*" +
                              at_step(GetParam(), 10)));
  }
}

TEST_P(Waiting, NamesARankWhoseDataIsLate) {
  Gang gang(2, GetParam(), [reach = GetParam()](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.comm = reach_options(reach, seconds(100));
    auto model = fully_shard(world, make_same_net(), options);
    for (int step = 1; step <= 12; ++step) {
      note_step(world, step);
      if (world.rank() == 1 && step == 10) std::this_thread::sleep_for(seconds(6));
      loss_of(model(net_batch(step))).backward();
    }
  });
  ASSERT_TRUE(gang.says(kAlarm)) << gang.log();
  EXPECT_THAT(gang.log(), AllOf(HasSubstr("[0] rank 0, in its 10th forward, has waited since"),
                                HasSubstr("for rank 1 (host "),
                                HasSubstr("at step 10, outside the model, after its 9th backward")));
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(gang.ends(rank, seconds(40))) << gang.log();
    EXPECT_EQ(gang.ranks().outcome(rank).error, "");
  }
  EXPECT_EQ(gang.count(kAlarm), 1) << gang.log();
  EXPECT_EQ(gang.count(" goes on, after "), 1) << gang.log();
}

// World::mean() has no options of its own.
TEST(WaitingWorld, SumsEndAfterTheTimeThatWasSet) {
  Gang gang(2, Reach::one_host, [](World& world) {
    set_wait_timeout(world, seconds(3));
    for (int step = 1; step <= 1000; ++step) {
      note_step(world, step);
      if (world.rank() == 1 && step == 10) stop_myself();
      (void)world.mean(1.0);
    }
  });
  ASSERT_TRUE(gang.ends(0, seconds(30))) << gang.log();
  EXPECT_THAT(gang.ranks().outcome(0).error, AllOf(HasSubstr("World::mean()"), HasSubstr("rank 1 (host "),
                                                   HasSubstr("its process is stopped")));
}

TEST(WaitingWorld, ARankThatIsStoppedBeforeTheFirstGroup) {
  Gang gang(2, Reach::one_host, [](World& world) {
    set_wait_timeout(world, seconds(3));
    if (world.rank() == 1) stop_myself();
    (void)world.mean(1.0);
  });
  ASSERT_TRUE(gang.ends(0, seconds(30))) << gang.log();
  EXPECT_THAT(gang.ranks().outcome(0).error,
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("did not join the group within"),
                    HasSubstr("its process is stopped")));
}

TEST(WaitingWorld, ProgramsLearnWhomTheirRankWaitsFor) {
  const TempFolder folder;
  Gang gang(2, Reach::one_host, [&](World& world) {
    on_waiting(world, [&](const std::string& text, milliseconds waited) {
      if (world.rank() == 0)
        std::ofstream(folder / "shown", std::ios::app)
            << "<" << text << "> " << (waited >= seconds(2)) << "\n";
    });
    std::string seen = waiting_for(world);
    for (int step = 1; step <= 20; ++step) {
      note_step(world, step);
      if (world.rank() == 1 && step == 10) std::this_thread::sleep_for(seconds(5));
      (void)world.mean(1.0);
    }
    require(seen.empty() && waiting_for(world).empty(), "nobody is waited for");
    on_waiting(world, nullptr);
  });
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(gang.ends(rank, seconds(40))) << gang.log();
    EXPECT_EQ(gang.ranks().outcome(rank).error, "");
  }
  std::ifstream file(folder / "shown");
  const std::string shown{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(shown, ::testing::StartsWith("<rank 1 (host "));
  EXPECT_THAT(shown, HasSubstr("> 1\n<> 0\n"));
}

}  // namespace
}  // namespace fsdp::testing
