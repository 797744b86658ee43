// Promise: a captured step trains like an ordinary one, and steps that cannot be replayed run as usual.
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>

#include <functional>
#include <set>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

constexpr int kCaptureSteps = 12;

// forward(x, y), as captured steps want it.
struct Net : torch::nn::Module {
  explicit Net(double dropout = 0.0) {
    const SeededHere seeded(3);
    body =
        register_module("body", torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::Tanh(),
                                                      torch::nn::Dropout(dropout), torch::nn::Linear(64, 64),
                                                      torch::nn::Tanh(), torch::nn::Linear(64, 4)));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor h = again ? recompute_sequential(*body, x, every_block(2), *again) : body->forward(x);
    return torch::mse_loss(h, y);
  }
  torch::nn::Sequential body{nullptr};
  std::optional<RecomputeOptions> again;
};

at::Tensor values(int64_t rows, int64_t columns, uint64_t seed, c10::Device device) {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({rows, columns}, gen).to(device);
}

struct Trained {
  std::vector<at::Tensor> params;
  std::vector<double> losses;
  int64_t replays = 0;
};

// Batches of 8 rows; `rows(step)` may say otherwise. Gradients of `adds(step)` are kept for the next step.
struct CaptureCourse {
  std::function<int64_t(int)> rows = [](int) { return int64_t{8}; };
  std::function<bool(int)> adds = [](int) { return false; };
  std::optional<RecomputeOptions> again = {};
};

Trained train(const World& world, Precision precision, bool captured, const CaptureCourse& course) {
  const auto net = std::make_shared<Net>();
  net->again = course.again;
  auto model = fully_shard(world, net, {.wrap = by_size(200), .precision = precision});
  AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
  auto step = capture(model);
  Trained trained;
  for (int i = 0; i < kCaptureSteps; ++i) {
    const auto x = values(course.rows(i), 16, static_cast<uint64_t>(i), world.device());
    const auto y = values(course.rows(i), 4, static_cast<uint64_t>(100 + i), world.device());
    at::Tensor loss;
    if (captured) {
      loss = step(x, y);
    } else {
      loss = model(x, y);
      loss.backward();
    }
    trained.losses.push_back(loss.item<double>());
    if (course.adds(i)) continue;
    model.clip_grad_norm_(0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto whole = model.full_params();
  for (const auto& param : model.module().parameters())
    trained.params.push_back(param.detach().cpu().clone());
  trained.replays = step.replays();
  return trained;
}

void expect_same(const Trained& found, const Trained& wanted) {
  require(found.losses == wanted.losses, "losses differ");
  for (size_t i = 0; i < wanted.params.size(); ++i)
    require(at::equal(found.params[i], wanted.params[i]), "parameter " + std::to_string(i) + " differs");
}

void compare(const World& world, Precision precision, const CaptureCourse& course, int64_t replays) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const Trained found = train(world, precision, true, course);
  expect_same(found, train(world, precision, false, course));
  require(found.replays == replays, std::to_string(found.replays) + " replays");
}

TEST(Capture, OnTheCpuAllStepsRunAsUsual) {
  run_ranks(2, [](World& world) { compare(world, fp32(), {}, 0); });
}

TEST(GpuCapture, TrainsToTheBit) {
  for (const bool low : {false, true})
    run_on_gpus(1, [&](World& world) { compare(world, low ? bf16() : fp32(), {}, kCaptureSteps - 3); });
}

TEST(GpuCapture, OtherShapesAndSumsRunAsUsual) {
  const CaptureCourse course{.rows = [](int i) { return i == 6 ? int64_t{5} : int64_t{8}; },
                             .adds = [](int i) { return i == 8; }};
  run_on_gpus(1, [&](World& world) { compare(world, fp32(), course, kCaptureSteps - 3 - 2); });
}

TEST(GpuCapture, WhatIsComputedAgainTrainsToTheBit) {
  for (const bool keep_rng : {false, true})
    run_on_gpus(1, [&](World& world) {
      const Trained plain = train(world, fp32(), false, {});
      const Trained again = train(world, fp32(), true, {.again = RecomputeOptions{.keep_rng = keep_rng}});
      expect_same(again, plain);
      std::printf("keep_rng %d: %ld replays\n", static_cast<int>(keep_rng), again.replays);
      require(again.replays == kCaptureSteps - 3, "replays");
    });
}

// Linear in its parameter, so that the loss is the product of parameter and gradient, if both dropped the
// same elements.
struct Dropping : torch::nn::Module {
  Dropping() { weight = register_parameter("weight", torch::ones({4096})); }
  at::Tensor forward(const at::Tensor& x) {
    const auto drop = [this](const at::Tensor& in) { return at::dropout(in * weight, 0.5, true); };
    return recompute(drop, recompute(drop, x)).sum();
  }
  at::Tensor weight;
};

TEST(GpuCapture, WhatIsComputedAgainDropsTheSameElements) {
  run_on_gpus(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<Dropping>());
    auto step = capture(model);
    const at::Tensor x = values(1, 4096, 1, world.device()).abs().squeeze(0);
    std::set<double> seen;
    for (int i = 0; i < 8; ++i) {
      const double loss = step(x).item<double>();
      const double product = model.parameters()[0].grad().to(at::kDouble).sum().item<double>();
      require(std::abs(product - 2 * loss) < 1e-3 * loss,
              "step " + std::to_string(i) + ": loss " + std::to_string(loss) + ", gradients " +
                  std::to_string(product / 2) + ", replays " + std::to_string(step.replays()));
      seen.insert(loss);
      model.zero_grad();
    }
    require(seen.size() == 8, "the same elements were dropped twice");
    std::printf("%ld replays\n", step.replays());
  });
}

TEST(GpuCapture, AKeptGradientIsNotWrittenByReplays) {
  for (const bool low : {false, true})
    run_on_gpus(1, [&](World& world) {
      auto model = fully_shard(world, std::make_shared<Net>(),
                               {.wrap = by_size(200), .precision = low ? bf16() : fp32()});
      auto step = capture(model);
      std::vector<at::Tensor> kept, wanted;
      for (int i = 0; i < 8; ++i) {
        step(values(8, 16, static_cast<uint64_t>(i), world.device()), values(8, 4, 9, world.device()));
        for (const auto& slice : model.parameters()) {
          kept.push_back(slice.grad());
          wanted.push_back(slice.grad().clone());
        }
        model.zero_grad();
      }
      require(step.replays() == 5, "replays");
      for (size_t i = 0; i < kept.size(); ++i) require(at::equal(kept[i], wanted[i]), "a kept gradient");
    });
}

TEST(GpuCapture, DropsOtherElementsInEveryReplay) {
  run_on_gpus(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<Net>(0.5));
    auto step = capture(model);
    const auto x = values(8, 16, 1, world.device()), y = values(8, 4, 2, world.device());
    std::set<double> seen;
    for (int i = 0; i < 8; ++i) {
      seen.insert(step(x, y).item<double>());
      model.zero_grad();
    }
    require(step.replays() == 5, "replays");
    require(seen.size() == 8, "the same elements were dropped twice");
  });
}

// A forward that reads a value on the host.
struct Reading : Net {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = Net::forward(x, y);
    return loss.item<double>() > 1e9 ? loss * 2 : loss;
  }
};

TEST(GpuCapture, WhatCannotBeRecordedRunsAsUsual) {
  run_on_gpus(1, [](World& world) {
    auto model = fully_shard(world, std::make_shared<Reading>(), {.wrap = by_size(200)});
    auto step = capture(model);
    const auto x = values(8, 16, 1, world.device()), y = values(8, 4, 2, world.device());
    std::set<double> seen;
    for (int i = 0; i < 6; ++i) {
      seen.insert(step(x, y).item<double>());
      for (const auto& slice : model.parameters()) require(slice.grad().defined(), "a gradient is missing");
      model.zero_grad();
    }
    require(step.replays() == 0 && seen.size() == 1, "other losses");
  });
}

}  // namespace
}  // namespace fsdp::testing
