// Promise: AdamW's moments can be kept in bf16: half the memory, nearly the same training, and bits that do
// not depend on the number of ranks.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using Moments = torch::optim::AdamWParamState;

Moments& moments_of(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  return static_cast<Moments&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

// Every rank has the same data, so that gradients are the same for any number of ranks.
State train(World& world, std::optional<at::ScalarType> moments, int steps, bool amsgrad = false) {
  auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
  const auto options = AdamWOptions(1e-2).amsgrad(amsgrad);
  auto optimizer =
      moments ? AdamW(model.parameters(), options, *moments) : AdamW(model.parameters(), options);
  for (int step = 0; step < steps; ++step) {
    model(model.module().batch(step)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  bool maximum = !amsgrad;
  for (const at::Tensor& slice : model.parameters()) {
    if (slice.numel() == 0 || steps == 0) continue;
    const Moments& state = moments_of(optimizer, slice);
    const auto type = moments.value_or(at::kFloat);
    require(state.exp_avg().scalar_type() == type && state.exp_avg_sq().scalar_type() == type, "type");
    maximum = maximum || (amsgrad && state.max_exp_avg_sq().gt(0).any().item<bool>());
  }
  require(maximum, "no maximum is kept");
  return state_of(model);
}

TEST(Moments, TrainNearlyAsInFullPrecision) {
  run_ranks(2, [](World& world) {
    const State wide = train(world, std::nullopt, 30);
    const double apart = drift(train(world, at::kBFloat16, 30), wide);
    const double moved = drift(train(world, std::nullopt, 0), wide);
    require(apart > 0 && apart < 0.1 * moved, std::to_string(apart) + " of " + std::to_string(moved));
    require(difference(train(world, at::kFloat, 30), wide).empty(), "fp32 is what parameters have");
  });
}

TEST(Moments, BitsDoNotDependOnTheNumberOfRanks) {
  State wanted;
  run_ranks(1, [&](World& world) { wanted = train(world, at::kBFloat16, 10, /*amsgrad=*/true); });
  for (const int ranks : {2, 4})
    run_ranks(ranks, [&](World& world) { require_same(train(world, at::kBFloat16, 10, true), wanted); });
}

// A step of bf16 is 1/256; beta2 = 0.999 takes away 1/1000 at a time. Rounded to the nearest it would stay.
void require_decay(at::Device device) {
  const at::Tensor weight = torch::ones({100000}, device).requires_grad_();
  AdamW optimizer({weight}, AdamWOptions(1e-3), at::kBFloat16);
  torch::manual_seed(3);
  weight.mutable_grad() = torch::rand({100000}).add_(0.5).to(device);  // equal values would round alike
  const double wanted = weight.grad().pow(2).mean().item<double>() * 1e-3;
  optimizer.step();
  const double start = moments_of(optimizer, weight).exp_avg_sq().to(at::kFloat).mean().item<double>();
  require(std::abs(start / wanted - 1) < 1e-2, "starts with " + std::to_string(start));
  weight.mutable_grad() = torch::zeros_like(weight);
  for (int step = 0; step < 500; ++step) optimizer.step();
  const double end = moments_of(optimizer, weight).exp_avg_sq().to(at::kFloat).mean().item<double>();
  require(std::abs(end / start - std::pow(0.999, 500)) < 0.01, std::to_string(end / start));
}

TEST(Moments, ASecondMomentDecaysWhenGradientsEnd) { require_decay(at::kCPU); }
TEST(GpuMoments, ASecondMomentDecaysWhenGradientsEnd) {
  run_on_gpus(1, [](World& world) { require_decay(world.device()); });
}

TEST(Moments, WhatIsNotANumberStaysSo) {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  AdamW optimizer({weight}, AdamWOptions(1e-3), at::kBFloat16);
  const auto all_bits = torch::full({3}, 0x7fffffff, at::kInt).view(at::kFloat);  // NaN as GPUs make it
  weight.mutable_grad() = all_bits;
  optimizer.step();
  EXPECT_TRUE(moments_of(optimizer, weight).exp_avg().isnan().all().item<bool>());
  EXPECT_TRUE(moments_of(optimizer, weight).exp_avg_sq().isnan().all().item<bool>());
}

TEST(Moments, TypesThatAreNotOfferedAreRefused) {
  const at::Tensor weight = torch::ones({4}).requires_grad_();
  weight.mutable_grad() = torch::ones({4});
  AdamW optimizer({weight}, AdamWOptions(1e-3), at::kHalf);
  try {
    optimizer.step();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("keeps moments as bf16"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fsdp::testing
