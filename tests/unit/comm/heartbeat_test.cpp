// Which rank the others wait for, when that is said, and in which words.
#include <gmock/gmock.h>

#include "comm/heartbeat/beat.h"
#include "comm/heartbeat/wait_report.h"
#include "comm/heartbeat/wait_watch.h"
#include "comm/heartbeat/wait_words.h"

namespace fsdp::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Milliseconds kLook{250};

// Ranks of a gang, seen by rank 0.
struct Gang {
  explicit Gang(int size) : beats(static_cast<size_t>(size)), watch(0, std::vector<bool>(beats.size())) {}
  Beat& operator[](int rank) { return beats[static_cast<size_t>(rank)]; }
  // Every rank but those in `silent` beats.
  void look(int times, const std::vector<int>& silent = {}, Milliseconds since = kLook) {
    for (int i = 0; i < times; ++i)
      for (int rank = 0; rank < static_cast<int>(beats.size()); ++rank) {
        if (std::find(silent.begin(), silent.end(), rank) == silent.end()) ++(*this)[rank].count;
        watch.see(rank, (*this)[rank], since);
      }
  }
  std::vector<int> late(const std::vector<int>& group) const { return watch.late(group); }

  std::vector<Beat> beats;
  WaitWatch watch;
};

TEST(WaitWatch, NamesTheRankThatDoesNotWait) {
  Gang gang(3);
  gang[0].waits = gang[1].waits = 7;
  gang[2].waits = 6;
  gang.look(9);
  EXPECT_THAT(gang.late({0, 1, 2}), ElementsAre(2));
  EXPECT_EQ(gang.watch.waited(0), 8 * kLook);
}

TEST(WaitWatch, NamesNobodyIfAllWait) {
  Gang gang(3);
  for (int rank = 0; rank < 3; ++rank) gang[rank].waits = 1;
  gang.look(100);
  EXPECT_THAT(gang.late({0, 1, 2}), IsEmpty());
}

TEST(WaitWatch, LooksBeyondTheGroupIfAllOfItWaits) {
  Gang gang(4);
  for (int rank = 0; rank < 3; ++rank) gang[rank].waits = 1;
  gang.look(9);
  EXPECT_THAT(gang.late({0, 1}), ElementsAre(3)) << "rank 1 waits for it in another group";
  gang[1].waits = 2;
  gang.look(1);
  EXPECT_THAT(gang.late({0, 1}), ElementsAre(1)) << "rank 3 is none of this group";
}

TEST(WaitWatch, ASilentRankIsLateThoughItWaits) {
  Gang gang(3);
  for (int rank = 0; rank < 3; ++rank) gang[rank].waits = 1;
  gang.look(2);
  gang.look(5, {1});
  EXPECT_THAT(gang.late({0, 1, 2}), IsEmpty()) << "1.25 s may be a busy machine";
  gang.look(1, {1});
  EXPECT_THAT(gang.late({0, 1, 2}), ElementsAre(1));
  EXPECT_EQ(gang.watch.silent_for(Milliseconds(1500)), 1);
  EXPECT_EQ(gang.watch.silent_for(Milliseconds(1501)), -1);
  gang.look(1);
  EXPECT_THAT(gang.late({0, 1, 2}), IsEmpty()) << "it goes on";
}

TEST(WaitWatch, ARankThatWorksInTheSameSaveIsNotLate) {
  Gang gang(2);
  gang[0].waits = 1;
  gang[0].meetings = gang[1].meetings = 3;
  gang.look(100);
  EXPECT_THAT(gang.late({0, 1}), IsEmpty());
  gang[1].meetings = 2;
  gang.look(1);
  EXPECT_THAT(gang.late({0, 1}), ElementsAre(1)) << "it has not come to the save";
  gang[1].meetings = 3;
  gang.look(6, {1});
  EXPECT_THAT(gang.late({0, 1}), ElementsAre(1)) << "it is stopped";
}

TEST(WaitWatch, ARankThatEndedIsNotLate) {
  Gang gang(2);
  gang[0].waits = 1;
  gang.look(1);
  gang[1].left = true;
  gang.look(20, {1});
  EXPECT_THAT(gang.late({0, 1}), IsEmpty());
}

TEST(WaitWatch, ARankWithoutAHeartbeatIsNotLate) {
  Gang gang(2);
  gang[0].waits = 1;
  gang.look(20, {1});
  EXPECT_THAT(gang.late({0, 1}), IsEmpty());
}

TEST(WaitWatch, AGangThatWasStoppedAsAWholeCountsLittle) {
  Gang gang(2);
  gang[0].waits = 1;
  gang.look(2);
  gang.look(1, {1}, std::chrono::hours(1));
  EXPECT_LE(gang.watch.waited(0), Milliseconds(3000));
}

TEST(WaitWatch, ManyShortWaitsAreNoLongOne) {
  Gang gang(2);
  for (int i = 0; i < 50; ++i) {
    gang[0].waits = static_cast<uint64_t>(2 * i + 1);
    gang.look(1);
  }
  EXPECT_EQ(gang.watch.waited(0), Milliseconds(0));
}

TEST(Patience, IsThreeStepsAndAtLeastTwoSeconds) {
  Patience patience;
  EXPECT_EQ(patience.get(), Milliseconds(10000)) << "before the first step is over";
  Clock::time_point now;
  patience.begin_step(now);
  EXPECT_EQ(patience.get(), Milliseconds(10000));
  for (int i = 0; i < 9; ++i) patience.begin_step(now += Milliseconds(10));
  EXPECT_EQ(patience.get(), Milliseconds(2000));
  patience.begin_step(now += std::chrono::seconds(600));
  EXPECT_EQ(patience.get(), Milliseconds(2000)) << "one step that took long does not count";
  for (int i = 0; i < 9; ++i) patience.begin_step(now += Milliseconds(4000));
  EXPECT_EQ(patience.get(), Milliseconds(12000));
}

TEST(WaitReport, SpeaksOnceThenRarelyThenWhenItIsOver) {
  WaitReport report;
  const LateRank late{.rank = 2, .name = "rank 2 (host h, pid 17)", .words = "at step 13"};
  EXPECT_EQ(report.look("rank 0", Milliseconds(1000), std::nullopt, false).log, "");
  int lines = 0;
  std::string first;
  for (Milliseconds waited{2000}; waited < Milliseconds(300000); waited += kLook) {
    const auto say = report.look("rank 0, in save(),", waited, late, false);
    if (lines == 0) first = say.log;
    lines += say.log.empty() ? 0 : 1;
    EXPECT_EQ(say.show.has_value(), waited == Milliseconds(2000));
  }
  EXPECT_EQ(lines, 4) << "after 2, 60, 120 and 240 s";
  EXPECT_THAT(first, HasSubstr("rank 0, in save(), has waited since "));
  EXPECT_THAT(first, HasSubstr(" (2 s) for rank 2 (host h, pid 17), which is at step 13"));
  const auto over = report.look("rank 0", Milliseconds(0), std::nullopt, false);
  EXPECT_EQ(over.log, "rank 2 (host h, pid 17) goes on, after 299 s");
  EXPECT_EQ(over.show, "");
  EXPECT_EQ(report.look("rank 0", Milliseconds(0), std::nullopt, false).log, "");
}

TEST(WaitReport, IsQuietIfALowerRankSpeaks) {
  WaitReport report;
  const LateRank late{.rank = 2, .name = "rank 2", .words = ""};
  const auto say = report.look("rank 1", Milliseconds(5000), late, true);
  EXPECT_EQ(say.log, "");
  EXPECT_TRUE(say.show);
  EXPECT_EQ(report.look("rank 1", Milliseconds(0), std::nullopt, true).log, "");
}

TEST(WaitReport, DoesNotSayThatARankGoesOnIfTheWaitFailed) {
  WaitReport report;
  const LateRank late{.rank = 2, .name = "rank 2", .words = ""};
  (void)report.look("rank 1", Milliseconds(5000), late, false);
  report.forget();
  EXPECT_EQ(report.look("rank 1", Milliseconds(0), std::nullopt, false).log, "");
}

TEST(WaitWords, SayWhereARankIs) {
  Beat beat;
  beat.step = 13;
  beat.activity = "outside the model, after its 12th backward";
  beat.activity_ms = 4200;
  beat.collective = "all_reduce 'sum()'";
  EXPECT_EQ(where_it_is(beat, "stopped", Milliseconds(4000)),
            "at step 13, outside the model, after its 12th backward, for 4 s; its last collective was "
            "all_reduce 'sum()'; its process is stopped");
  EXPECT_THAT(where_it_is(beat, "", Milliseconds(4000)), HasSubstr("; it has given no sign of life for 4 s"));
  EXPECT_THAT(where_it_is(beat, "", Milliseconds(0)), Not(HasSubstr("sign of life")));
  EXPECT_EQ(where_it_is({}, "", Milliseconds(0)), "not yet in a call of the model");
  EXPECT_EQ(more_about(beat, "stopped", Milliseconds(0)),
            ". It is at step 13; its last collective was all_reduce 'sum()'; its process is stopped");
  EXPECT_EQ(more_about({}, "", Milliseconds(0)), "");
}

TEST(Beat, GoesThroughThePageAndTheStore) {
  auto page = std::make_unique<BeatPage>();
  EXPECT_EQ(page->read().step, -1);
  page->step = 14;
  page->waits = 3;
  page->note_collective("all_gather", std::string(500, 'x'));
  page->activity.write("in its 5th\nforward");
  const Beat shown = page->read();
  EXPECT_EQ(shown.step, 13);
  EXPECT_TRUE(shown.waits_now());
  EXPECT_THAT(shown.collective, ::testing::MatchesRegex("all_gather 'x+'"));
  const auto read = parse_beat_line(beat_line(4, shown).substr(0, beat_line(4, shown).size() - 1));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->first, 4);
  EXPECT_EQ(read->second.step, 13);
  EXPECT_EQ(read->second.waits, 3u);
  EXPECT_EQ(read->second.activity, "in its 5th forward");
  EXPECT_EQ(read->second.collective, shown.collective);
  for (const char* broken : {"", "4", "4 1 2 3", "x y z", "4 1 2 3 4 5 0 no separator"})
    EXPECT_FALSE(parse_beat_line(broken)) << broken;
}

}  // namespace
}  // namespace fsdp::detail
