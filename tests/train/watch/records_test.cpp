#include "trainer/watch/records.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace fsdp::watch {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

StepRecord some_step() {
  StepRecord step{.time = 1.5, .step = 7, .epoch = 0.25, .loss = 2.5, .learning_rate = 3e-4};
  step.gradient_norm = 0.75;
  step.tokens = 4096;
  step.tokens_per_second = 1e4;
  step.seconds = 0.5;
  step.times = {0.01, 0.1, 0.2, 0.05, 0.03, 0.02};
  step.memory_bytes = int64_t{1} << 40;
  return step;
}

template <typename T>
T round_trip(const T& record) {
  const std::string line = to_json(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return std::get<T>(parse_record(line));
}

TEST(Records, AStepKeepsAllItsMembers) {
  const StepRecord step = round_trip(some_step());
  EXPECT_EQ(step.time, 1.5);
  EXPECT_EQ(step.step, 7);
  EXPECT_EQ(step.epoch, 0.25);
  EXPECT_EQ(step.loss, 2.5);
  EXPECT_EQ(step.learning_rate, 3e-4);
  EXPECT_EQ(step.gradient_norm, 0.75);
  EXPECT_EQ(step.tokens, 4096);
  EXPECT_EQ(step.tokens_per_second, 1e4);
  EXPECT_EQ(step.mfu, std::nullopt);
  EXPECT_EQ(step.seconds, 0.5);
  EXPECT_EQ(step.times.data, 0.01);
  EXPECT_EQ(step.times.forward, 0.1);
  EXPECT_EQ(step.times.backward, 0.2);
  EXPECT_EQ(step.times.optimizer, 0.05);
  EXPECT_EQ(step.times.checkpoint, 0.03);
  EXPECT_EQ(step.times.waiting, 0.02);
  EXPECT_EQ(step.memory_bytes, int64_t{1} << 40);
  EXPECT_FALSE(step.skipped);
}

TEST(Records, NamesOfMembersAreTheFormat) {
  const Json step = Json::parse(to_json(some_step()));
  EXPECT_EQ(step["kind"], "step");
  EXPECT_EQ(step["lr"], 3e-4);
  EXPECT_EQ(step["mfu"], nullptr);
  EXPECT_EQ(step["times"]["waiting"], 0.02);
  EXPECT_EQ(Json::parse(to_json(ResumeRecord{.step = 3}))["kind"], "resume");
  EXPECT_EQ(Json::parse(to_json(EvalRecord{}))["kind"], "eval");
  EXPECT_EQ(Json::parse(to_json(EndRecord{.exit_code = 6}))["exit"], 6);
}

TEST(Records, EveryKindComesBack) {
  StartRecord start{.run = "runs/a", .ranks = 4, .backend = "shm", .parameters = 1000};
  start.bytes_per_rank = {{"shards", 4000}, {"gradients", 2000}};
  start.config = {{"z", "last"}, {"a", "first"}};
  EXPECT_THAT(round_trip(start).config, ElementsAre(Pair("z", "last"), Pair("a", "first")));
  EXPECT_THAT(round_trip(start).bytes_per_rank, ElementsAre(Pair("shards", 4000), Pair("gradients", 2000)));
  EXPECT_EQ(round_trip(start).ranks, 4);
  EXPECT_EQ(round_trip(EvalRecord{.step = 5, .loss = 1.25, .tokens = 64}).tokens, 64);
  EXPECT_EQ(round_trip(CheckpointRecord{.step = 5, .path = "p", .blocking_seconds = 0.5}).blocking_seconds,
            0.5);
  UnitsRecord units{.step = 5, .steps = 5};
  units.units = {{"block0", 10, 5, 4096, 0.125}, {"block1", 10, 5, 4096, {}}};
  EXPECT_EQ(round_trip(units).units.at(0).seconds, 0.125);
  EXPECT_EQ(round_trip(units).units.at(1).seconds, std::nullopt);
  EXPECT_EQ(round_trip(units).units.at(1).name, "block1");
  MemoryRecord memory{.step = 5};
  memory.ranks = {{.rank = 1, .kinds = {{"slots", 12}}}};
  EXPECT_THAT(round_trip(memory).ranks.at(0).kinds, ElementsAre(Pair("slots", 12)));
  EXPECT_EQ(round_trip(EventRecord{.step = 5, .text = "early stop"}).text, "early stop");
  EXPECT_EQ(round_trip(EndRecord{.reason = "SIGTERM", .exit_code = 143}).exit_code, 143);
}

TEST(Records, NumbersThatJsonCannotHold) {
  StepRecord step = some_step();
  step.loss = NAN;
  step.gradient_norm = INFINITY;
  step.tokens_per_second = -INFINITY;
  EXPECT_THAT(to_json(step), HasSubstr("\"loss\":\"nan\""));
  EXPECT_TRUE(std::isnan(round_trip(step).loss));
  EXPECT_EQ(round_trip(step).gradient_norm, INFINITY);
  EXPECT_EQ(round_trip(step).tokens_per_second, -INFINITY);
}

TEST(Records, TextsOfAnyBytesMakeOneLineOfUtf8) {
  const EventRecord event = round_trip(EventRecord{.text = "two\nlines \"quoted\" \xff"});
  EXPECT_EQ(event.text, "two\nlines \"quoted\" \xef\xbf\xbd");
}

TEST(Records, MembersOfLaterVersionsAreIgnored) {
  Json json = Json::parse(to_json(some_step()));
  json["temperature"] = {1, 2};
  EXPECT_EQ(std::get<StepRecord>(parse_record(json.dump())).step, 7);
}

TEST(Records, RefusesWhatIsNoRecord) {
  const auto refused = [](const std::string& line, const std::string& why) {
    EXPECT_THAT([&] { parse_record(line); }, ThrowsMessage<std::runtime_error>(HasSubstr(why))) << line;
  };
  refused("", "no JSON");
  refused("{\"kind\":\"step\",", "no JSON");
  refused("[1]", "a JSON object is expected");
  refused("{\"step\":1}", "\"kind\" is missing");
  refused("{\"kind\":5}", "\"kind\" is missing");
  refused("{\"kind\":\"stop\",\"time\":1}", "\"stop\" is no kind of record");
  refused("{\"kind\":\"eval\",\"time\":1,\"step\":1,\"loss\":1}", "\"tokens\" is missing");
  refused("{\"kind\":\"resume\",\"time\":1,\"step\":1.5,\"from\":\"\"}",
          "\"step\": a whole number is expected");
  refused("{\"kind\":\"resume\",\"time\":\"now\",\"step\":1,\"from\":\"\"}", "\"time\": a number, \"nan\"");
  Json json = Json::parse(to_json(some_step()));
  json["times"].erase("waiting");
  refused(json.dump(), "\"times\": the member \"waiting\" is missing");
}

}  // namespace
}  // namespace fsdp::watch
