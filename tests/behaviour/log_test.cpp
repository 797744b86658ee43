// Promise: FSDP_LOG takes four levels and refuses others; debug says how ranks start and end.
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include "base/log.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const InitOptions kOnCpu{.device = c10::Device(c10::kCPU)};

std::string refusal_of(const std::function<void()>& starts) {
  try {
    starts();
  } catch (const RendezvousError& error) {
    return error.what();
  }
  return "accepted";
}

std::string said_by(const std::function<void()>& starts) {
  ::testing::internal::CaptureStderr();
  starts();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, RefusesAnUnknownLevel) {
  const ScopedEnv level("FSDP_LOG", "verbose");
  const std::string wanted =
      "FSDP_LOG='verbose' is not a log level. Set it to error, warn, info or debug, or unset it (info).";
  EXPECT_EQ(refusal_of([] { init(kOnCpu); }), wanted);
  EXPECT_EQ(refusal_of([] {
              run_local(
                  2, [](World&) {}, kOnCpu);
            }),
            wanted);
}

TEST(Log, TakesEveryLevel) {
  for (const char* level : {"error", "warn", "info", "debug", "", "DEBUG", "Warn"}) {
    const ScopedEnv set("FSDP_LOG", level);
    EXPECT_EQ(refusal_of([] { init(kOnCpu); }), "accepted") << level;
  }
}

TEST(Log, DebugSaysHowRanksStart) {
  const ScopedEnv level("FSDP_LOG", "debug");
  const std::string ours = said_by([] {
    run_local(
        2, [](World&) {}, kOnCpu);
  });
  for (const std::string rank : {"rank 0 of 2", "rank 1 of 2"}) {
    const std::string line = "fsdp: debug: " + rank;
    EXPECT_THAT(ours, ContainsRegex(line + ", from run_local; store at 127\\.0\\.0\\.1:[0-9]+; fsdp "));
    EXPECT_THAT(
        ours, ContainsRegex(line + ": all ranks met after [0-9]+ ms; host .*, pid [0-9]+, local rank [01] of "
                                   "2, device cpu, [0-9]+ thread"));
  }
  const std::string alone = said_by([] { init(kOnCpu); });
  EXPECT_THAT(alone, AllOf(HasSubstr("fsdp: debug: rank 0 of 1, from nothing: this process is alone;"),
                           HasSubstr("device cpu")));
}

TEST(Log, DebugSaysHowEveryRankEnded) {
  const auto two_failures = [] {
    try {
      run_local(
          2, [](World& world) { throw Error("bad " + std::to_string(world.rank())); }, kOnCpu);
    } catch (const RankError&) {  // has the message of one
    }
  };
  const ScopedEnv level("FSDP_LOG", "debug");
  EXPECT_THAT(said_by(two_failures), AllOf(HasSubstr("fsdp: debug: rank 0 of 2 failed: bad 0\n"),
                                           HasSubstr("fsdp: debug: rank 1 of 2 failed: bad 1\n")));
  const ScopedEnv info("FSDP_LOG", "info");
  EXPECT_EQ(said_by(two_failures), "");
}

TEST(Log, BuildsNoDebugMessageWhileDebugIsOff) {
  int built = 0;
  const auto message = [&] {
    ++built;
    return std::string("plan of 3 units");
  };
  const auto log_at = [&](const char* level) {
    const ScopedEnv set("FSDP_LOG", level);
    detail::read_log_level();
    return said_by([&] { detail::log_debug(message); });
  };
  EXPECT_EQ(log_at("info"), "");
  EXPECT_EQ(built, 0);
  EXPECT_EQ(log_at("debug"), "fsdp: debug: plan of 3 units\n");
  EXPECT_EQ(built, 1);
  const ScopedEnv unset("FSDP_LOG", nullptr);
  detail::read_log_level();
}

}  // namespace
}  // namespace fsdp::testing
