// Learning rate schedules: the factor of every step, and the rates of an optimizer's groups.
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/ranks.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<double> factors(const ScheduleOptions& options, int64_t steps) {
  std::vector<double> all;
  for (int64_t step = 0; step < steps; ++step) all.push_back(learning_rate_factor(options, step));
  return all;
}

MATCHER(IsNear, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-12; }

TEST(LearningRate, ConstantStaysAfterTheWarmUp) {
  EXPECT_THAT(factors({.decay = Decay::constant, .warmup_steps = 4}, 6),
              Pointwise(IsNear(), {0.25, 0.5, 0.75, 1.0, 1.0, 1.0}));
}

TEST(LearningRate, LinearFallsToTheFinalRatioAndStaysThere) {
  EXPECT_THAT(factors({.decay = Decay::linear, .total_steps = 6, .warmup_steps = 2, .final_ratio = 0.2}, 8),
              Pointwise(IsNear(), {0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2}));
}

TEST(LearningRate, CosineFallsAlongHalfACosine) {
  const ScheduleOptions options{.decay = Decay::cosine, .total_steps = 4, .final_ratio = 0.0};
  const double quarter = 0.5 + std::sqrt(0.5) / 2;
  EXPECT_THAT(factors(options, 5), Pointwise(IsNear(), {1.0, quarter, 0.5, 1 - quarter, 0.0}));
}

TEST(LearningRate, DecayStepsShortenTheDecay) {
  for (const Decay decay : {Decay::linear, Decay::cosine}) {
    const ScheduleOptions options{.decay = decay, .total_steps = 10, .decay_steps = 4, .final_ratio = 0.0};
    EXPECT_NEAR(learning_rate_factor(options, 2), 0.5, 1e-12);
    EXPECT_NEAR(learning_rate_factor(options, 4), 0.0, 1e-12);
    EXPECT_NEAR(learning_rate_factor(options, 9), 0.0, 1e-12);
  }
}

TEST(LearningRate, WsdFallsAtTheEndOnly) {
  const ScheduleOptions fifth{.decay = Decay::wsd, .total_steps = 10, .warmup_steps = 1, .final_ratio = 0.0};
  EXPECT_THAT(factors(fifth, 11), Pointwise(IsNear(), {1., 1., 1., 1., 1., 1., 1., 1., 1., .5, 0.}));
  ScheduleOptions given = fifth;
  given.decay_steps = 4;
  EXPECT_THAT(factors(given, 11), Pointwise(IsNear(), {1., 1., 1., 1., 1., 1., 1., .75, .5, .25, 0.}));
}

TEST(LearningRate, OnlyAWarmUpHasNoDecay) {
  const ScheduleOptions options{.decay = Decay::cosine, .total_steps = 3, .warmup_steps = 3};
  EXPECT_NEAR(learning_rate_factor(options, 2), 1.0, 1e-12);
  EXPECT_NEAR(learning_rate_factor(options, 3), options.final_ratio, 1e-12) << "after the last step";
}

TEST(LearningRate, RefusesOptionsThatContradictEachOther) {
  const auto refused = [](const ScheduleOptions& options) {
    return refusal([&] { learning_rate_factor(options, 0); });
  };
  EXPECT_THAT(refused({.decay = Decay::linear}), HasSubstr("total_steps 0"));
  EXPECT_THAT(refused({.total_steps = 10, .warmup_steps = -1}), HasSubstr("warmup_steps -1"));
  EXPECT_THAT(refused({.total_steps = 10, .decay_steps = -2}), HasSubstr("decay_steps -2"));
  EXPECT_THAT(refused({.total_steps = 10, .warmup_steps = 6, .decay_steps = 5}), HasSubstr("do not fit"));
  EXPECT_THAT(refused({.total_steps = 10, .final_ratio = -0.1}), HasSubstr("final_ratio -0.1"));
}

TEST(LearningRate, ParsesNamesInAnyCase) {
  EXPECT_EQ(parse_decay("constant"), Decay::constant);
  EXPECT_EQ(parse_decay("Linear"), Decay::linear);
  EXPECT_EQ(parse_decay("COSINE"), Decay::cosine);
  EXPECT_EQ(parse_decay("wsd"), Decay::wsd);
  EXPECT_THAT(refusal([] { parse_decay("cosin"); }),
              HasSubstr("'cosin' is no learning rate schedule; expected constant, linear, cosine or wsd"));
}

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

TEST(LearningRate, ScheduleScalesEveryGroupByItsOwnRate) {
  const auto group = [](double rate) {
    return torch::optim::OptimizerParamGroup({torch::zeros({2}, torch::requires_grad())},
                                             std::make_unique<torch::optim::SGDOptions>(rate));
  };
  torch::optim::SGD optimizer({group(1.0), group(0.1)}, torch::optim::SGDOptions(1.0));
  LearningRateSchedule schedule(optimizer, {.decay = Decay::linear, .total_steps = 4, .final_ratio = 0.0});
  for (const double factor : {1.0, 0.75, 0.5, 0.25, 0.0, 0.0}) {
    EXPECT_THAT(rates_of(optimizer), Pointwise(DoubleNear(1e-12), {factor, 0.1 * factor}));
    schedule.step();
  }
}

TEST(LearningRate, ScheduleGoesOnFromACheckpoint) {
  const TempFolder folder;
  constexpr int kSteps = 6;
  const ScheduleOptions options{.total_steps = kSteps, .warmup_steps = 2};
  run_ranks(1, [&](World& world) {
    // The rates of steps [from, to) of a run, resumed or new.
    const auto train = [&](bool resumed, int to) {
      auto model = fully_shard(world, torch::nn::Linear(4, 4));
      AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
      LearningRateSchedule schedule(optimizer, options);
      RunState run{.model = model, .optimizer = &optimizer, .scheduler = &schedule};
      if (resumed) load(folder.path(), run);
      std::vector<double> rates;
      for (; run.step < to; ++run.step, schedule.step()) {
        rates.push_back(rates_of(optimizer).front());
        model(torch::ones({1, 4})).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      save(folder.path(), run);
      return rates;
    };
    std::vector<double> rates = train(false, 3);
    for (const double rate : train(true, kSteps)) rates.push_back(rate);
    for (int64_t step = 0; step < kSteps; ++step)
      EXPECT_DOUBLE_EQ(rates.at(static_cast<size_t>(step)), 1e-2 * learning_rate_factor(options, step))
          << step;
  });
}

}  // namespace
}  // namespace fsdp::testing
