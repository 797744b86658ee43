#include "trainer/watch/live_line.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

namespace fsdp::watch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgressState full_state() {
  ProgressState state{.step = 1234, .steps = 10000, .loss = 2.34567, .learning_rate = 3e-4};
  state.gradient_norm = 0.817;
  state.tokens_per_second = 12345;
  state.mfu = 0.412;
  state.memory_bytes = int64_t{29} << 30;
  state.seconds_left = 5025;
  return state;
}

TEST(LiveLine, AWideTerminalShowsAll) {
  EXPECT_EQ(live_line(full_state(), {.width = 140}),
            "[==>                      ]  step  1,234/10,000  loss 2.3457  lr 3.00e-04  grad norm 0.82  "
            "tok/s 12.3k  MFU 41.2%  mem 29.0 GiB  ETA 1:23:45");
}

TEST(LiveLine, NeverExceedsTheWidth) {
  for (const bool utf8 : {false, true})
    for (const bool color : {false, true})
      for (int width = 1; width <= 200; ++width) {
        const std::string line = live_line(full_state(), {width, utf8, color});
        EXPECT_LE(columns_of(line), width) << line;
        EXPECT_EQ(line.find('\033') != std::string::npos, color) << line;
        EXPECT_GE(columns_of(line), std::min(width, 18)) << line;
      }
}

TEST(LiveLine, LessWidthLeavesOutTheLessImportant) {
  EXPECT_EQ(live_line(full_state(), {.width = 20}), "step  1,234/10,000");
  EXPECT_EQ(live_line(full_state(), {.width = 40}), "step  1,234/10,000  loss 2.3457");
  EXPECT_EQ(live_line(full_state(), {.width = 45}), "step  1,234/10,000  loss 2.3457  ETA 1:23:45");
  EXPECT_EQ(live_line(full_state(), {.width = 60}),
            "step  1,234/10,000  loss 2.3457  tok/s 12.3k  ETA 1:23:45");
  EXPECT_EQ(live_line(full_state(), {.width = 80}),
            "[      ]  step  1,234/10,000  loss 2.3457  lr 3.00e-04  tok/s 12.3k  ETA 1:23:45");
}

TEST(LiveLine, AWiderTerminalNeverShowsLess) {
  const auto values = [](int width) {
    int found = 0;
    const std::string line = live_line(full_state(), {.width = width});
    for (const char* label : {"step", "loss", "lr", "grad norm", "tok/s", "MFU", "mem", "ETA"})
      found += line.find(label) != std::string::npos ? 1 : 0;
    return found;
  };
  for (int width = 20; width < 200; ++width) EXPECT_LE(values(width), values(width + 1)) << width;
  EXPECT_EQ(values(200), 8);
}

TEST(LiveLine, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(live_line({.step = 7}, {.width = 100}), "step 7");
  EXPECT_EQ(live_line({.step = 7, .loss = NAN}, {.width = 100}), "step 7  loss    nan");
  EXPECT_THAT(live_line({.step = 7, .steps = 9}, {.width = 100}), Not(HasSubstr("MFU")));
}

TEST(LiveLine, TheBarIsFilledByTheShareOfSteps) {
  const auto bar = [](int64_t step) {
    const std::string line = live_line({.step = step, .steps = 4}, {.width = 20});
    return line.substr(0, line.find(']') + 1);
  };
  EXPECT_EQ(bar(0), "[        ]");
  EXPECT_EQ(bar(1), "[=>      ]");
  EXPECT_EQ(bar(2), "[===>    ]");
  EXPECT_EQ(bar(4), "[========]");
  EXPECT_EQ(bar(5), "[========]") << "more steps than planned";
  EXPECT_THAT(live_line({.step = 2, .steps = 4}, {.width = 18, .utf8 = true}), StartsWith("━━━━────  step"));
}

TEST(LiveLine, OnlyUtf8UsesMoreThanAscii) {
  for (const char c : live_line(full_state(), {.width = 200})) EXPECT_GE(c, 0);
}

TEST(LiveLine, ItsWidthIsSteadyWhileStepsGoBy) {
  ProgressState state = full_state();
  const int columns = columns_of(live_line(state, {.width = 150}));
  for (const int64_t step : {1, 99, 1000, 10000}) {
    state.step = step;
    state.tokens_per_second = static_cast<double>(9000 + step);
    EXPECT_EQ(columns_of(live_line(state, {.width = 150})), columns) << step;
  }
}

TEST(PlainLine, HasEveryValueAndNoBar) {
  EXPECT_EQ(
      plain_line(full_state()),
      "step  1,234/10,000  loss 2.3457  lr 3.00e-04  grad norm 0.82  tok/s 12.3k  MFU 41.2%  mem 29.0 GiB  "
      "ETA 1:23:45");
}

TEST(WaitingLine, ShortensWhatItWaitsForFirst) {
  const auto line = [](int width) {
    return waiting_line("the checkpoint of step 100", "14:02:10", 12.4, width);
  };
  EXPECT_EQ(line(80), "waiting for the checkpoint of step 100 since 14:02:10 (12 s)");
  EXPECT_EQ(line(50), "waiting for the checkpoin... since 14:02:10 (12 s)");
  EXPECT_EQ(line(30), "waiting for the checkpoint ...");
  for (int width = 1; width <= 200; ++width) EXPECT_LE(columns_of(line(width)), width);
}

TEST(Columns, OfWideAndCombiningCharactersAndEscapes) {
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("é"), 1);
  EXPECT_EQ(columns_of("e\u0301"), 1);
  EXPECT_EQ(columns_of("日本"), 4);
  EXPECT_EQ(columns_of("😀"), 2);
  EXPECT_EQ(columns_of("\033[36mab\033[0m"), 2);
  EXPECT_EQ(columns_of("\xff\xfe"), 2);
  EXPECT_EQ(columns_of("\033["), 0);
}

TEST(Columns, CutsBetweenCharacters) {
  EXPECT_EQ(cut_to("abcdef", 6), "abcdef");
  EXPECT_EQ(cut_to("abcdefg", 6), "abc...");
  EXPECT_EQ(cut_to("日本語です", 7), "日本...");
  EXPECT_EQ(cut_to("日本語です", 8), "日本...");
  EXPECT_EQ(cut_to("abcdef", 2), "..");
  EXPECT_EQ(cut_to("abcdef", 0), "");
  EXPECT_EQ(cut_to("\033[36mabcdef", 5), "\033[36mab\033[0m...");
}

}  // namespace
}  // namespace fsdp::watch
