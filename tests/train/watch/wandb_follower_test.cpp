// WandbFollower with a package wandb of our own, which writes down what it is asked to do.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"
#include "trainer/watch/metrics_writer.h"
#include "trainer/watch/wandb.h"

namespace fsdp::watch {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr const char* kFakeWandb = R"(
import json, os
def say(call, **what):
    with open(os.environ["FAKE_WANDB"], "a") as file:
        file.write(json.dumps({"call": call, **what}) + "\n")
class Config:
    def update(self, values, allow_val_change): say("config", values=values)
class Summary(dict):
    def __setitem__(self, key, value): say("summary", key=key, value=value)
class Run:
    config, summary = Config(), Summary()
    def define_metric(self, name, step_metric=None): pass
    def log(self, values):
        if values["step"] == 13: raise ValueError("thirteen")
        say("log", values=values)
    def finish(self, exit_code): say("finish", code=exit_code)
def Settings(console): return None
def init(**options):
    if "broken" in options["tags"]: raise RuntimeError("no network")
    say("init", **options)
    return Run()
)";

class WandbFollowerTest : public ::testing::Test {
 protected:
  WandbFollowerTest() {
    std::filesystem::create_directories(temp_ / "package/wandb");
    std::filesystem::create_directories(options_.folder = temp_ / "run");
    std::ofstream(temp_ / "package/wandb/__init__.py") << kFakeWandb;
    ::setenv("PYTHONPATH", (temp_ / "package").c_str(), 1);
    ::setenv("FAKE_WANDB", calls_.c_str(), 1);
    options_.project = "tests";
    options_.mode = "offline";
    options_.tags = {"a", "with space; and \"quotes\""};
  }

  void write(const Record& record) { MetricsWriter(options_.folder + "/metrics.jsonl").write(record); }
  // The calls of this name, in order.
  std::vector<Json> calls(const std::string& name) const {
    std::ifstream file(calls_);
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);)
      if (const Json call = Json::parse(line); call["call"] == name) found.push_back(call);
    return found;
  }
  std::vector<int64_t> logged_steps() const {
    std::vector<int64_t> steps;
    for (const Json& call : calls("log")) steps.push_back(call["values"]["step"].get<int64_t>());
    return steps;
  }
  // Waits until the calls have one of this name.
  void wait_for(const std::string& name) const {
    for (int i = 0; i < 2000 && calls(name).empty(); ++i) ::usleep(10000);
  }

  testing::TempFolder temp_;
  std::string calls_ = temp_ / "calls.jsonl";
  WandbOptions options_;
};

TEST_F(WandbFollowerTest, SendsEveryStepWithTheProjectAndTags) {
  write(StartRecord{.run = "runs/a", .ranks = 2, .config = {{"optimizer.lr", "0.001"}}});
  WandbFollower follower(options_);
  for (int64_t step = 1; step <= 3; ++step)
    write(StepRecord{.step = step, .loss = 1.5, .learning_rate = 1e-3, .times = {.forward = 0.25}});
  write(EvalRecord{.step = 3, .loss = 1.25});
  write(EndRecord{.step = 3, .reason = "all steps done"});
  EXPECT_EQ(follower.finish(), std::nullopt);

  const Json init = calls("init").at(0);
  EXPECT_EQ(init["project"], "tests");
  EXPECT_EQ(init["entity"], nullptr);
  EXPECT_EQ(init["mode"], "offline");
  EXPECT_EQ(init["tags"], Json(options_.tags));
  EXPECT_EQ(calls("config").at(0)["values"]["optimizer.lr"], "0.001");
  EXPECT_EQ(calls("config").at(0)["values"]["ranks"], 2);
  EXPECT_EQ(logged_steps(), (std::vector<int64_t>{1, 2, 3, 3}));
  const Json step = calls("log").at(2)["values"];
  EXPECT_EQ(step["loss"], 1.5);
  EXPECT_EQ(step["learning_rate"], 1e-3);
  EXPECT_EQ(step["time/forward"], 0.25);
  EXPECT_FALSE(step.contains("mfu")) << "unset";
  EXPECT_EQ(calls("log").at(3)["values"]["eval/loss"], 1.25);
  EXPECT_EQ(calls("summary").at(0)["value"], "all steps done");
  EXPECT_EQ(calls("finish").at(0)["code"], 0);
}

TEST_F(WandbFollowerTest, SendsWhileTheRunGoesOn) {
  write(StartRecord{});
  WandbFollower follower(options_);
  write(StepRecord{.step = 1});
  wait_for("log");
  EXPECT_EQ(logged_steps(), (std::vector<int64_t>{1}));
  EXPECT_THAT(calls("finish"), IsEmpty());
}

TEST_F(WandbFollowerTest, AResumedRunGoesOnWithTheSameRun) {
  for (const int64_t step : {1, 2}) {
    write(StartRecord{});
    WandbFollower follower(options_);
    write(StepRecord{.step = step});
    write(EndRecord{.step = step});
    EXPECT_EQ(follower.finish(), std::nullopt);
  }
  EXPECT_EQ(calls("init").at(0)["id"], calls("init").at(1)["id"]);
  EXPECT_EQ(logged_steps(), (std::vector<int64_t>{1, 2})) << "each line is sent once";
}

TEST_F(WandbFollowerTest, AKilledRunIsSentAndMarkedAsFailed) {
  write(StartRecord{});
  const pid_t run = ::fork();
  if (run == 0) {
    const WandbFollower follower(options_);
    write(StepRecord{.step = 1});
    ::raise(SIGKILL);
  }
  ::waitpid(run, nullptr, 0);
  wait_for("finish");
  EXPECT_EQ(logged_steps(), (std::vector<int64_t>{1}));
  EXPECT_EQ(calls("finish").at(0)["code"], 1);
}

TEST_F(WandbFollowerTest, NumbersThatAreNotFiniteAreSentAsNumbers) {
  write(StepRecord{.step = 1, .loss = NAN});
  WandbFollower follower(options_);
  EXPECT_EQ(follower.finish(), std::nullopt);
  std::ifstream file(calls_);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("\"loss\": NaN"));
}

TEST_F(WandbFollowerTest, ALineThatCannotBeSentIsSkipped) {
  write(StepRecord{.step = 12});
  write(StepRecord{.step = 13});
  std::ofstream(options_.folder + "/metrics.jsonl", std::ios::app) << "nonsense\n";
  write(StepRecord{.step = 14});
  std::ofstream(options_.folder + "/metrics.jsonl", std::ios::app) << "{\"kind\":\"step\"";
  WandbFollower follower(options_);
  EXPECT_EQ(follower.finish(), std::nullopt);
  EXPECT_EQ(logged_steps(), (std::vector<int64_t>{12, 14}));
}

TEST_F(WandbFollowerTest, SaysWhyMetricsWereNotSent) {
  write(StepRecord{.step = 1});
  options_.tags = {"broken"};
  WandbFollower follower(options_);
  EXPECT_THAT(follower.finish(), Optional(AllOf(HasSubstr("RuntimeError: no network"),
                                                HasSubstr(options_.folder + "/logs/wandb.log"))));
}

TEST_F(WandbFollowerTest, DoesNotWaitLongerThanItsPatience) {
  write(StepRecord{.step = 1});
  WandbFollower follower(options_);
  EXPECT_THAT(follower.finish(std::chrono::milliseconds(0)),
              Optional(HasSubstr("still has metrics to send")));
  wait_for("finish");
  EXPECT_EQ(calls("finish").size(), 1U) << "the process goes on alone";
}

TEST_F(WandbFollowerTest, RefusesAPythonThatDoesNotExist) {
  options_.python = "/does/not/exist/python3";
  EXPECT_ANY_THROW(WandbFollower{options_});
}

}  // namespace
}  // namespace fsdp::watch
