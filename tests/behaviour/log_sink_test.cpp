// Promise: with set_log_sink() a program gets the library's log lines instead of stderr, one at a time.
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <thread>

#include "base/log.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

struct Lines {
  std::vector<std::pair<LogLevel, std::string>> all;
  LogSink sink() {
    return [this](LogLevel level, std::string_view line) { all.emplace_back(level, line); };
  }
};

// The level and the sink are the process's: both are put back.
class LogSinkTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::info); }
  void TearDown() override {
    set_log_sink({});
    set_log_level(LogLevel::info);
  }
  static std::string stderr_of(const std::function<void()>& does) {
    ::testing::internal::CaptureStderr();
    does();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogSinkTest, GetsLinesInsteadOfStderr) {
  Lines lines;
  set_log_sink(lines.sink());
  EXPECT_EQ(stderr_of([] {
              detail::log(LogLevel::warn, "replicas differ");
              detail::log(LogLevel::info, "2 ranks");
            }),
            "");
  EXPECT_THAT(lines.all,
              ElementsAre(Pair(LogLevel::warn, "replicas differ"), Pair(LogLevel::info, "2 ranks")));
}

TEST_F(LogSinkTest, AnEmptySinkRestoresStderr) {
  Lines lines, others;
  EXPECT_FALSE(set_log_sink(lines.sink())) << "none was set before";
  const LogSink before = set_log_sink(others.sink());
  before(LogLevel::error, "told to the first");
  EXPECT_THAT(lines.all, ElementsAre(Pair(LogLevel::error, "told to the first")));
  set_log_sink({});
  EXPECT_EQ(stderr_of([] { detail::log(LogLevel::warn, "a line"); }), "fsdp: warning: a line\n");
  EXPECT_TRUE(others.all.empty());
}

TEST_F(LogSinkTest, LevelOverridesTheEnvironment) {
  const ScopedEnv debug("FSDP_LOG", "debug");
  Lines lines;
  set_log_sink(lines.sink());
  set_log_level(LogLevel::warn);
  detail::log(LogLevel::info, "left out");
  detail::log(LogLevel::warn, "told");
  set_log_level(LogLevel::debug);
  detail::log(LogLevel::debug, "told too");
  EXPECT_THAT(lines.all, ElementsAre(Pair(LogLevel::warn, "told"), Pair(LogLevel::debug, "told too")));
}

TEST_F(LogSinkTest, ThreadsComeOneAtATime) {
  int inside = 0, most = 0, count = 0;  // not atomic: that is what the sink is promised
  set_log_sink([&](LogLevel, std::string_view) {
    most = std::max(most, ++inside);
    std::this_thread::yield();
    --inside;
    ++count;
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int line = 0; line < 200; ++line) detail::log(LogLevel::info, "line");
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(count, 800);
}

TEST_F(LogSinkTest, FormatsLinesAsOnStderr) {
  EXPECT_EQ(format_log_line(LogLevel::error, "a"), "fsdp: error: a");
  EXPECT_EQ(format_log_line(LogLevel::warn, "a"), "fsdp: warning: a");
  EXPECT_EQ(format_log_line(LogLevel::info, "a"), "fsdp: a");
  EXPECT_EQ(format_log_line(LogLevel::debug, "a"), "fsdp: debug: a");
}

}  // namespace
}  // namespace fsdp::testing
