// Promise: a model says how much it held at the peak of a step, and at every moment of it.
#include <gmock/gmock.h>

#include <sstream>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

template <class Body>
void timeline_each_size(Body body) {
  for (const int ranks : {1, 2, 3}) run_ranks(ranks, body);
}

Sharded<NetImpl> sharded(const World& world, ShardOptions options = {}) {
  options.wrap = by_type<BlockImpl>();
  return fully_shard(world, make_net(), options);
}

void train_step(Sharded<NetImpl>& model, const World& world) {
  model.zero_grad();
  loss_of(model(torch::full({2, 6}, 1.0 + world.rank()))).backward();
}

std::vector<std::string> moments_of(const std::vector<MemorySample>& samples) {
  std::vector<std::string> moments;
  for (const MemorySample& one : samples) moments.push_back(one.moment);
  return moments;
}

const std::vector<std::string> kMoments{
    "forward root",  "forward block0",  "forward block1",  "forward block2",  "forward root",
    "backward root", "backward block2", "backward block1", "backward block0", "end of backward"};

TEST(Timeline, HasARowForEveryBoundaryOfTheStep) {
  for (const auto& precision : {fp32(), bf16()})
    timeline_each_size([&](World& world) {
      auto model = sharded(world, {.precision = precision});
      train_step(model, world);
      require(model.memory_timeline().empty(), "nobody asked for samples");
      model.record_memory(true);
      for (int step = 0; step < 3; ++step) {
        train_step(model, world);
        const auto samples = model.memory_timeline();
        require(moments_of(samples) == kMoments, format_timeline(samples));
        const MemoryStats now = model.memory_stats();
        for (const auto& [moment, memory] : samples) {
          require(memory.current_bytes == memory.parameter_bytes + memory.gradient_bytes +
                                              memory.arena_bytes + memory.buffer_bytes +
                                              memory.overflow_bytes + memory.wire_bytes,
                  moment + ": the sum of its parts");
          require(memory.current_bytes <= now.step_peak_bytes, moment + ": no more than the peak");
          require(memory.parameter_bytes == now.parameter_bytes, moment + ": shards");
        }
        require(samples.front().memory.gradient_bytes == 0, "no gradients at first");
        require(samples.back().memory.gradient_bytes == now.gradient_bytes && now.gradient_bytes > 0,
                "all gradients in the end");
      }
    });
}

TEST(Timeline, StaysAsItIsWhenNothingIsRecorded) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world);
    model.record_memory(true);
    train_step(model, world);
    {
      const at::NoGradGuard no_grad;
      model(torch::ones({2, 6}));
    }
    require(moments_of(model.memory_timeline()) == kMoments, "an evaluation is not part of it");
    const int64_t gathers = model.memory_timeline().back().memory.all_gathers;
    model.record_memory(false);
    train_step(model, world);
    require(model.memory_timeline().back().memory.all_gathers == gathers, "the samples of the first step");
  });
}

// Gradients that no_sync() keeps back are whole: that step holds more than others.
TEST(Timeline, ThePeakOfAStepForgetsTheStepBefore) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](World& world) {
      auto model = sharded(world);
      for (int step = 0; step < 3; ++step) train_step(model, world);
      const int64_t usual = model.memory_stats().step_peak_bytes;
      {
        const auto kept_back = model.no_sync();
        train_step(model, world);
      }
      const MemoryStats more = model.memory_stats();
      require(more.step_peak_bytes > usual, "whole gradients");
      model.zero_grad();
      for (int step = 0; step < 2; ++step) train_step(model, world);
      const MemoryStats after = model.memory_stats();
      require(after.step_peak_bytes < more.step_peak_bytes, "the step's own");
      require(after.peak_bytes >= more.step_peak_bytes, "the peak of all steps stays");
      model.zero_grad();
      model.reset_peak_memory();
      const MemoryStats fresh = model.memory_stats();
      require(fresh.peak_bytes == fresh.current_bytes && fresh.step_peak_bytes == fresh.current_bytes,
              "begun again");
      require(fresh.peak_bytes < after.peak_bytes, "without the gradients");
    });
}

TEST(Timeline, IsATableWithBars) {
  const std::vector<MemorySample> samples{
      {.moment = "forward a", .memory = {.parameter_bytes = 1024, .current_bytes = 1024}},
      {.moment = "end of backward",
       .memory = {.parameter_bytes = 1024, .gradient_bytes = 1024, .current_bytes = 2048}}};
  std::istringstream lines(format_timeline(samples));
  std::string header, first, second, rest;
  std::getline(lines, header), std::getline(lines, first), std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, rest));
  EXPECT_THAT(header, HasSubstr("gradients"));
  EXPECT_THAT(first, HasSubstr("forward a"));
  EXPECT_THAT(first, HasSubstr("1.0 KiB  " + std::string(20, '#')));
  EXPECT_THAT(second, HasSubstr("2.0 KiB  " + std::string(40, '#')));
  EXPECT_EQ(format_timeline({}).find('#'), std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
