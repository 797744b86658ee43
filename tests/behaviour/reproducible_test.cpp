// Promise: in reproducible mode parameters and moments have the same bits for every number of ranks, and
// those of a plain loop over the same microbatches.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "support/sha256.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kMicrobatches = 8;
constexpr uint64_t kSeed = 77;
constexpr double kMaxNorm = 0.5;

// Ranks that sleep at random issue their collectives in all kinds of time.
void sleep_a_little(bool sleepy) {
  if (!sleepy) return;
  thread_local std::minstd_rand dice(std::random_device{}());
  if (dice() % 8 == 0) ::usleep(static_cast<useconds_t>(dice() % 400));
}

struct Net : torch::nn::Module {
  Net() {
    const SeededHere seeded(11);
    table = register_module("table", torch::nn::Embedding(23, 20));
    for (int i = 0; i < 3; ++i) {
      const std::string number = std::to_string(i);
      norms.push_back(
          register_module("norm" + number, torch::nn::LayerNorm(torch::nn::LayerNormOptions({20}))));
      layers.push_back(register_module("layer" + number, torch::nn::Linear(20, 20)));
    }
    head = register_module("head", torch::nn::Linear(20, 23));
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) {
    auto x = table(ids);
    for (size_t i = 0; i < layers.size(); ++i) {
      sleep_a_little(sleepy);
      x = x + torch::dropout(torch::gelu(layers[i](norms[i](x))), 0.2, is_training());
      if (sleepy && x.requires_grad()) x.register_hook([](const at::Tensor&) { sleep_a_little(true); });
    }
    return torch::cross_entropy_loss(head(x).flatten(0, 1), targets.flatten());
  }
  bool sleepy = false;
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
};

std::pair<at::Tensor, at::Tensor> batch(int64_t index, c10::Device device) {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + index));
  return {torch::randint(23, {3, 7}, gen).to(device), torch::randint(23, {3, 7}, gen).to(device)};
}

void seed_all(uint64_t seed, c10::Device device) {
  at::Generator cpu = at::globalContext().defaultGenerator(c10::kCPU);
  cpu.set_current_seed(seed);
  if (device.is_cpu()) return;
  at::Generator own = at::globalContext().defaultGenerator(device);
  own.set_current_seed(seed);
}

const torch::optim::AdamWParamState& moments(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  return static_cast<const torch::optim::AdamWParamState&>(
      *optimizer.state().at(param.unsafeGetTensorImpl()));
}

// The norm as reproducible mode defines it is part of the mode, so the reference is given the factor.
std::string train_plain(int steps, c10::Device device, const std::function<double(int step)>& norm_of_step) {
  at::set_num_threads(1);
  Net net;
  net.to(device);
  PlainTrainer trainer(net, kMicrobatches);  // a rank for each
  const auto& params = trainer.parameters();
  AdamW optimizer(params, AdamWOptions(3e-3));
  for (int step = 0; step < steps; ++step) {
    trainer.backward([&](int m) {
      seed_all(microbatch_seed(kSeed, step, m), device);
      const auto [ids, targets] = batch(step * kMicrobatches + m, device);
      return net.forward(ids, targets);
    });
    const auto total = static_cast<float>(norm_of_step(step));
    const at::Tensor factor =
        (kMaxNorm / (at::full({}, total, at::TensorOptions(device)) + 1e-6)).clamp_max(1.0);
    for (const at::Tensor& param : params) param.mutable_grad().mul_(factor);
    trainer.step(optimizer);
  }
  Sha256 hash;
  for (const auto& param : params) hash.add(param);
  for (const auto& param : params) hash.add(moments(optimizer, param).exp_avg());
  for (const auto& param : params) hash.add(moments(optimizer, param).exp_avg_sq());
  return hash.hex();
}

struct Trained {
  std::string sha;
  uint64_t hash = 0;
  std::vector<double> norms;
};

Trained train_sharded(const World& world, int steps, ShardOptions options, bool sleepy) {
  options.reproducible = Reproducible{.microbatches = kMicrobatches, .seed = kSeed};
  if (!options.wrap) options.wrap = by_size(200);
  auto net = std::make_shared<Net>();
  net->sleepy = sleepy;
  auto model = fully_shard(world, net, options);
  AdamW optimizer(model.parameters(), AdamWOptions(3e-3));
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    for (int m = world.rank(); m < kMicrobatches; m += world.size()) {
      const auto [ids, targets] = batch(step * kMicrobatches + m, world.device());
      model(ids, targets).backward();
    }
    trained.norms.push_back(model.clip_grad_norm_(kMaxNorm).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  require(model.step() == steps, "steps counted");
  trained.hash = model.state_hash();
  Sha256 hash;
  const auto add_all = [&] {
    const auto whole = model.full_params();
    for (const auto& param : model.module().parameters()) hash.add(param);
  };
  add_all();
  const at::NoGradGuard no_grad;
  for (auto& slice : model.parameters())
    if (slice.numel() > 0) slice.copy_(moments(optimizer, slice).exp_avg());
  add_all();
  for (auto& slice : model.parameters())
    if (slice.numel() > 0) slice.copy_(moments(optimizer, slice).exp_avg_sq());
  add_all();
  trained.sha = hash.hex();
  return trained;
}

// Runs `body` on W processes and returns what rank 0 hands over.
Trained on_ranks(int ranks, c10::Device device, const std::function<Trained(World&)>& body) {
  char name[] = "/tmp/fsdp_reproducible_XXXXXX";
  const int file = ::mkstemp(name);
  run_processes(
      ranks,
      [&](World& world) {
        const Trained found = body(world);
        if (world.rank() > 0) return;
        FILE* out = ::fdopen(file, "w");
        std::fprintf(out, "%s %lu", found.sha.c_str(), found.hash);
        for (const double norm : found.norms) std::fprintf(out, " %.17g", norm);
        std::fclose(out);
      },
      device);
  std::ifstream in(name);
  Trained found;
  in >> found.sha >> found.hash;
  for (double norm = 0; in >> norm;) found.norms.push_back(norm);
  ::close(file);
  std::remove(name);
  return found;
}

void expect_equal_for_all(const std::vector<int>& sizes, int steps, c10::Device device,
                          const ShardOptions& options) {
  Trained first;
  for (const int ranks : sizes) {
    const Trained found = on_ranks(ranks, device, [&](World& world) {
      ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
      return train_sharded(world, steps, options, true);
    });
    std::printf("  W = %d: sha256 %s, hash %016lx\n", ranks, found.sha.c_str(), found.hash);
    ASSERT_EQ(found.norms.size(), static_cast<size_t>(steps));
    if (first.sha.empty()) first = found;
    EXPECT_EQ(found.sha, first.sha) << ranks << " ranks";
    EXPECT_EQ(found.hash, first.hash) << ranks << " ranks";
    EXPECT_EQ(found.norms, first.norms) << ranks << " ranks";
  }
  std::string plain;
  const Trained reference = on_ranks(1, device, [&](World& world) {
    if (!world.device().is_cpu()) at::globalContext().setDeterministicAlgorithms(true, false);
    return Trained{
        train_plain(steps, world.device(), [&](int step) { return first.norms[static_cast<size_t>(step)]; }),
        0,
        {}};
  });
  std::printf("  plain loop: sha256 %s\n", reference.sha.c_str());
  EXPECT_EQ(first.sha, reference.sha) << "the plain loop";
}

TEST(Reproducible, SameBitsOnAnyNumberOfRanks) {
  expect_equal_for_all({1, 2, 4, 8}, repeats(25, 1000), c10::kCPU, {});
}

TEST(Reproducible, WithOtherStrategies) {
  for (const ShardOptions& options :
       {ShardOptions{.strategy = Strategy::no_shard}, ShardOptions{.strategy = Strategy::shard_grad_op},
        ShardOptions{.strategy = Strategy::hybrid_shard, .shard_size = 2}})
    expect_equal_for_all({2, 4}, 8, c10::kCPU, options);
}

// Clipping looks at whole regions, so what is frozen or was dropped must not be left in them.
TEST(Reproducible, FrozenAndDroppedGradientsDoNotCount) {
  const auto train = [](World& world) {
    auto model = fully_shard(
        world, std::make_shared<Net>(),
        {.wrap = by_size(200), .reproducible = Reproducible{.microbatches = kMicrobatches, .seed = kSeed}});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    Trained trained;
    for (int step = 0; step < 6; ++step) {
      model.module().layers[1]->weight.set_requires_grad(step < 2 || step > 4);
      for (int m = world.rank(); m < kMicrobatches; m += world.size()) {
        const auto [ids, targets] = batch(step * kMicrobatches + m, world.device());
        model(ids, targets).backward();
      }
      trained.norms.push_back(model.clip_grad_norm_(kMaxNorm).item<double>());
      optimizer.step();
      optimizer.zero_grad();
      require(model.clip_grad_norm_(kMaxNorm).item<double>() == 0, "a norm of gradients that are gone");
    }
    trained.hash = model.state_hash();
    trained.sha = "none";
    return trained;
  };
  const Trained one = on_ranks(1, c10::kCPU, train);
  for (const int ranks : {2, 4}) {
    const Trained found = on_ranks(ranks, c10::kCPU, train);
    EXPECT_EQ(found.hash, one.hash) << ranks << " ranks";
    EXPECT_EQ(found.norms, one.norms) << ranks << " ranks";
  }
}

// A microbatch that fails leaves nothing in the sums, nor in the random numbers.
TEST(Reproducible, AFailedBackwardIsDoneAgain) {
  const auto train = [](World& world, bool fails) {
    auto model = fully_shard(world, std::make_shared<Net>(),
                             {.wrap = by_size(200),
                              .check_gradients = true,
                              .reproducible = Reproducible{.microbatches = kMicrobatches, .seed = kSeed}});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    bool failed = false;
    for (int step = 0; step < 3; ++step) {
      for (int m = world.rank(); m < kMicrobatches; m += world.size()) {
        const auto [ids, targets] = batch(step * kMicrobatches + m, world.device());
        if (fails && step == 1 && m / world.size() == 1) {
          try {
            (model(ids, targets) * std::numeric_limits<float>::infinity()).backward();
          } catch (const c10::Error&) {
            failed = true;
          }
        }
        model(ids, targets).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    require(failed == fails, "fails");
    return Trained{"none", model.state_hash(), {}};
  };
  const auto on_two = [&](bool fails) {
    return on_ranks(2, c10::kCPU, [&](World& world) { return train(world, fails); }).hash;
  };
  EXPECT_EQ(on_two(true), on_two(false));
}

TEST(GpuReproducible, SameBitsOnAnyNumberOfRanks) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  expect_equal_for_all({1, 2, 4}, 50, c10::Device(c10::kCUDA, 0), {});
}

TEST(Reproducible, WhatWouldChangeBitsIsRefused) {
  const auto said = [](World& world, const std::function<void()>& does) {
    try {
      does();
    } catch (const c10::Error& error) {
      return std::string(error.what());
    }
    return "nothing, on rank " + std::to_string(world.rank());
  };
  const auto expect = [](const std::string& found, const std::string& words) {
    require(found.find(words) != std::string::npos, found);
  };
  run_ranks(2, [&](World& world) {
    const auto shard = [&](const ShardOptions& options) {
      auto model = fully_shard(world, std::make_shared<Net>(), options);
    };
    expect(said(world, [&] { shard({.reproducible = Reproducible{.microbatches = 6}}); }),
           "6 microbatches on 2 ranks");
    expect(said(world, [&] { shard({.reproducible = Reproducible{.microbatches = 1}}); }),
           "1 microbatches on 2 ranks");
    expect(said(world,
                [&] {
                  shard({.precision = {.reduce = at::kBFloat16},
                         .reproducible = Reproducible{.microbatches = 4}});
                }),
           "fp32 or wider");
    expect(said(world,
                [&] {
                  auto model = fully_shard(world, make_learner("convnet"),
                                           {.reproducible = Reproducible{.microbatches = 4}});
                }),
           "running_mean");
    auto model =
        fully_shard(world, std::make_shared<Net>(), {.reproducible = Reproducible{.microbatches = 4}});
    expect(said(world, [&] { const auto kept = model.no_sync(); }), "no_sync()");
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const auto [ids, targets] = batch(world.rank(), c10::kCPU);
    model(ids, targets).backward();
    for (const auto& slice : model.parameters())
      require(!slice.grad().defined(), "a gradient before the last microbatch");
    {
      const at::NoGradGuard no_grad;
      for (auto& slice : model.parameters()) slice.mul_(1.5);
    }
    expect(said(world, [&] { model(ids, targets); }), "after 2 of 4 microbatches");
    model.zero_grad();
    for (int i = 0; i < 2; ++i) model(ids, targets).backward();
    for (const auto& slice : model.parameters()) require(slice.grad().defined(), "a gradient after the last");
  });
}

TEST(Reproducible, GradientsThatAreNotFiniteAreNamed) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.check_gradients = true});
    auto data = model.module().batch(world.rank());
    model(data).backward();
    model.zero_grad();
    std::string said;
    if (world.rank() == 1) data[0].fill_(std::numeric_limits<float>::quiet_NaN());
    try {
      model(data).backward();
    } catch (const c10::Error& error) {
      said = error.what();
    }
    require(said.find("not finite") != std::string::npos && said.find("on rank 1") != std::string::npos &&
                said.find("on rank 0") == std::string::npos,
            said);
    model.zero_grad();
    model(model.module().batch(world.rank())).backward();
  });
}

}  // namespace
}  // namespace fsdp::testing
