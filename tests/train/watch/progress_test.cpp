#include "trainer/watch/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>

namespace fsdp::watch {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A pipe as the stream.
class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~ProgressTest() override {
    progress_.reset();
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  Progress& start(bool live, ProgressOptions options = {}) {
    options.fd = ends_[1];
    options.terminal = {.live = live, .width = 81};
    return progress_.emplace(options);
  }
  // What was written since the last call.
  std::string written() {
    std::string text;
    std::array<char, 4096> block{};
    for (ssize_t n = 0; (n = ::read(ends_[0], block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<size_t>(n));
    return text;
  }
  // What was written until it has `word`, or 10 s are over.
  std::string written_until(const std::string& word) {
    std::string text;
    for (int i = 0; i < 1000 && text.find(word) == std::string::npos; ++i) {
      ::usleep(10000);
      text += written();
    }
    return text;
  }

  std::array<int, 2> ends_{};
  std::optional<Progress> progress_;
};

TEST_F(ProgressTest, PlainLinesComeEverySoManySteps) {
  Progress& progress = start(false, {.every_steps = 10});
  for (int64_t step = 1; step <= 25; ++step) progress.step({.step = step, .steps = 25});
  EXPECT_EQ(written(), "step  1/25\nstep 10/25\nstep 20/25\nstep 25/25\n");
}

TEST_F(ProgressTest, TheLiveLineIsRedrawnInPlace) {
  Progress& progress = start(true, {.redraw = milliseconds(0)});
  progress.step({.step = 1});
  progress.step({.step = 2});
  EXPECT_EQ(written(), "\r\033[Kstep 1\r\033[Kstep 2");
  progress_.reset();
  EXPECT_EQ(written(), "\r\033[K") << "the end leaves a clean line";
}

TEST_F(ProgressTest, TheLiveLineIsNotRedrawnTooOften) {
  Progress& progress = start(true, {.redraw = std::chrono::minutes(1)});
  for (int64_t step = 1; step <= 1000; ++step) progress.step({.step = step, .steps = 1000});
  const std::string text = written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 2) << text;
  EXPECT_THAT(text, EndsWith("step 1,000/1,000")) << "the last step is always drawn";
}

TEST_F(ProgressTest, ANoteDoesNotBreakTheLiveLine) {
  Progress& progress = start(true);
  progress.note("before");
  progress.step({.step = 1});
  progress.note("checkpoint \033[31mwritten");
  EXPECT_EQ(written(), "before\n\r\033[Kstep 1\r\033[Kcheckpoint ?[31mwritten\n\r\033[Kstep 1");
}

TEST_F(ProgressTest, AKeptLineStays) {
  Progress& progress = start(true);
  progress.step({.step = 1});
  progress.keep_line();
  progress.note("done");
  progress_.reset();
  EXPECT_EQ(written(), "\r\033[Kstep 1\ndone\n");
}

TEST_F(ProgressTest, ALongWaitShowsWhatForAndSinceWhen) {
  Progress& progress = start(false, {.patience = milliseconds(50)});
  auto wait = progress.waiting("rank 3");
  EXPECT_THAT(written_until("\n"), ::testing::MatchesRegex("waiting for rank 3 since ..:..:.. \\(0 s\\)\n"));
  wait.done();
  EXPECT_THAT(written_until("waited"), HasSubstr("waited 0 s for rank 3\n"));
}

TEST_F(ProgressTest, AShortWaitShowsNothing) {
  Progress& progress = start(true, {.patience = std::chrono::minutes(1)});
  for (int i = 0; i < 10; ++i) const auto wait = progress.waiting("a moment");
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressTest, TheLiveLineComesBackAfterAWait) {
  Progress& progress = start(true, {.patience = milliseconds(50)});
  progress.step({.step = 1});
  {
    const auto wait = progress.waiting("data");
    EXPECT_THAT(written_until("waiting"), HasSubstr("\r\033[Kwaiting for data since "));
  }
  EXPECT_THAT(written(), EndsWith("\r\033[Kstep 1"));
}

TEST_F(ProgressTest, AWaitThatIsShownCountsTheSeconds) {
  Progress& progress = start(true, {.patience = milliseconds(10)});
  const auto wait = progress.waiting("data");
  EXPECT_THAT(written_until("(1 s)"), HasSubstr("(0 s)"));
}

TEST_F(ProgressTest, AWaitThatHasLastedAlreadyIsShownAtOnce) {
  Progress& progress = start(true, {.patience = std::chrono::seconds(30)});
  const auto outer = progress.waiting("step 13");
  const auto inner = progress.waiting("rank 2", std::chrono::seconds(31));
  EXPECT_THAT(written_until(" s)"), ::testing::ContainsRegex("waiting for rank 2 since ..:..:.. \\(31 s\\)"));
}

TEST_F(ProgressTest, OfSeveralWaitsTheLatestIsShown) {
  Progress& progress = start(true, {.patience = milliseconds(50)});
  const auto outer = progress.waiting("the step");
  const auto inner = progress.waiting("rank 1");
  ::usleep(200000);
  EXPECT_THAT(written_until("waiting"), Not(HasSubstr("the step")));
}

TEST_F(ProgressTest, AWaitInASecondRoundIsShownToo) {
  Progress& progress = start(false, {.patience = milliseconds(20)});
  for (int i = 0; i < 3; ++i) {
    const auto wait = progress.waiting("round " + std::to_string(i));
    EXPECT_THAT(written_until("since"), HasSubstr("round " + std::to_string(i)));
  }
}

TEST_F(ProgressTest, AStreamThatNobodyReadsIsNoError) {
  Progress& progress = start(true, {.redraw = milliseconds(0)});
  ::close(ends_[0]);
  for (int64_t step = 1; step <= 10; ++step) progress.step({.step = step});
  progress.note("nobody reads this");
}

class FindTerminal : public ::testing::Test {
 protected:
  FindTerminal() {
    winsize size{.ws_row = 24, .ws_col = 93, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&main_, &side_, nullptr, nullptr, &size), 0);
    for (const char* name : {"LC_ALL", "LC_CTYPE", "NO_COLOR"}) ::unsetenv(name);
    ::setenv("LANG", "en_US.UTF-8", 1);
    ::setenv("TERM", "xterm", 1);
  }
  ~FindTerminal() override {
    ::close(main_);
    ::close(side_);
  }
  int main_ = -1, side_ = -1;
};

TEST_F(FindTerminal, ATerminalIsLive) {
  const Terminal found = find_terminal(side_);
  EXPECT_TRUE(found.live);
  EXPECT_TRUE(found.utf8);
  EXPECT_TRUE(found.color);
  EXPECT_EQ(terminal_width(side_), 93);
}

TEST_F(FindTerminal, APipeIsNot) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_FALSE(find_terminal(ends[1]).live);
  EXPECT_FALSE(find_terminal(ends[1]).color);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(FindTerminal, TheEnvironmentIsRespected) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(find_terminal(side_).color);
  EXPECT_TRUE(find_terminal(side_).live);
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(find_terminal(side_).utf8) << "LC_ALL beats LANG";
  ::setenv("LC_ALL", "de_DE.utf8", 1);
  EXPECT_TRUE(find_terminal(side_).utf8);
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(find_terminal(side_).live);
}

}  // namespace
}  // namespace fsdp::watch
