// Promise: what recompute() computes again in backward gives the gradients of a plain call, bit for bit, and
// its activations take no memory in between.
#include <ATen/autocast_mode.h>
#include <fsdp/recompute.h>
#include <gmock/gmock.h>

#include "behaviour/small_net.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "support/allocator_watch.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ::testing::HasSubstr;

// The plain twin computes plainly.
template <class Model>
constexpr bool kSharded = std::is_base_of_v<ShardedModel, std::remove_cvref_t<Model>>;
template <class Model, class Fn, class... Inputs>
auto block_of(Model& /*model*/, Fn fn, const Inputs&... inputs) {
  if constexpr (kSharded<Model>)
    return recompute(fn, inputs...);
  else
    return fn(inputs...);
}

std::vector<Variant> all_strategies() {
  std::vector<Variant> variants = usual_variants();
  for (const auto& [name, strategy] :
       {std::pair{"shard_grad_op", Strategy::shard_grad_op}, std::pair{"no_shard", Strategy::no_shard}}) {
    variants.push_back({name, sharded_by(by_type<BlockImpl>())});
    variants.back().options.strategy = strategy;
  }
  variants.push_back({"three slots", sharded_by(by_type<BlockImpl>())});
  variants.back().options.limit_all_gathers = 3;
  return variants;
}

TEST(Recompute, BlocksGiveTheGradientsOfPlainCalls) {
  expect_same(
      make_net,
      [](auto& model, const Moment& now) {
        const Tensor y = model.run([&](NetImpl& net) {
          Tensor h = net.in(now.randn({4, 6}));
          for (Block& block : net.blocks)
            h = block_of(
                model, [block](const Tensor& x) mutable { return block(x); }, h);
          return now.step % 2 == 0 ? net.out(h) : h;
        });
        model.see(y);
        model.backward(loss_of(y));
      },
      all_strategies());
}

// Each microbatch's random numbers are those of its seed, also when they are drawn again in backward.
TEST(Recompute, ReproducibleModeHasTheSameBitsOnAnyNumberOfRanks) {
  const auto hash = [](const World& world, bool again) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.reproducible = Reproducible{.microbatches = 4, .seed = 5};
    auto model = fully_shard(world, make_same_net(), options);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      for (int i = world.rank(); i < 4; i += world.size()) {
        const Tensor y = model.run([&](NetImpl& net) {
          Tensor h = net.in(torch::full({4, 6}, 0.1 * (step * 4 + i)));
          for (Block& block : net.blocks) {
            auto run = [block](const Tensor& x) mutable { return torch::dropout(block(x), 0.3, true); };
            h = again ? recompute(run, h) : run(h);
          }
          return net.out(h);
        });
        loss_of(y).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    return model.state_hash();
  };
  uint64_t wanted = 0;
  run_ranks(1, [&](World& world) { wanted = hash(world, false); });
  // Threads would draw from one generator.
  for (const int ranks : {1, 2, 4})
    run_processes(ranks, [&](World& world) { require(hash(world, true) == wanted, "another hash"); });
}

// Only parameters need gradients.
TEST(Recompute, TheWholeModelFromItsData) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6});
    const Tensor y = model.run([&](NetImpl& net) {
      return block_of(
          model, [&net](const Tensor& in) { return net.forward(in); }, x);
    });
    model.backward(loss_of(y));
  });
}

TEST(Recompute, Nested) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor y = model.run([&](NetImpl& net) {
      const auto rest = [&](const Tensor& x) {
        Tensor h = x;
        for (Block& block : net.blocks)
          h = block_of(
              model, [block](const Tensor& in) mutable { return block(in); }, h);
        return net.out(h);
      };
      return block_of(model, rest, net.in(now.randn({4, 6})));
    });
    model.backward(loss_of(y));
  });
}

TEST(Recompute, SeveralInputsAndResults) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor loss = model.run([&](NetImpl& net) {
      const auto two = [&](const Tensor& x, const Tensor& mask) {
        const Tensor h = net.blocks[0](x);
        return std::tuple<Tensor, Tensor>(h * mask, h.argmax(-1));
      };
      const auto many = [&](const Tensor& x) { return Tensors{x, net.blocks[1](x), x.detach()}; };
      const Tensor x = net.in(now.randn({4, 6}));
      const auto [h, index] = block_of(model, two, x, now.randn({4, 8}, 1).gt(0).to(at::kFloat));
      const Tensors list = block_of(model, many, h);
      return loss_of(net.out(list[0] + list[1])) + index.sum() * 0 + list[2].sum() * 0;
    });
    model.backward(loss);
  });
}

TEST(Recompute, WithAccumulationAndEvaluations) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const auto forward = [&](int64_t salt) {
      return model.run([&](NetImpl& net) {
        Tensor h = net.in(now.randn({4, 6}, salt));
        for (Block& block : net.blocks)
          h = block_of(
              model, [block](const Tensor& x) mutable { return block(x); }, h);
        return net.out(h);
      });
    };
    {
      const torch::NoGradGuard no_grad;
      model.see(forward(3));
    }
    const Tensor first = loss_of(forward(0)), second = loss_of(forward(1));
    model.backward(first);
    model.backward(second);
    model.backward(loss_of(forward(2)));
  });
}

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() {
    for (int i = 0; i < 3; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(8, 8)));
  }
  Tensor forward(const Tensor& x, bool again, bool offload = false) {
    Tensor h = x;
    for (auto& layer : layers) {
      auto step = [layer](const Tensor& in) mutable { return at::dropout(layer(in), 0.5, true); };
      h = again ? recompute({.offload_inputs = offload}, step, h) : step(h);
    }
    return h + at::rand_like(h);  // random numbers go on after it
  }
  std::vector<torch::nn::Linear> layers;
};

// What three steps gave: values, random numbers after them, and gradients.
Tensors run_noisy(at::Device device, bool again, bool offload) {
  torch::manual_seed(5);
  NoisyImpl net;
  net.to(device);
  Tensors seen;
  for (int step = 0; step < 3; ++step) {
    const Tensor y = net.forward(torch::ones({16, 8}, device), again, offload);
    y.square().sum().backward();
    seen.push_back(y.detach());
    seen.push_back(torch::rand({4}, device));  // also after backward
  }
  for (const Tensor& param : net.parameters()) seen.push_back(param.grad());
  return seen;
}

void require_same_noise(at::Device device, bool offload) {
  const Tensors plain = run_noisy(device, false, false), again = run_noisy(device, true, offload);
  for (size_t i = 0; i < plain.size(); ++i) require(plain[i].equal(again[i]), "the same as without");
}

TEST(Recompute, DrawsTheSameRandomNumbers) {
  for (const bool offload : {false, true}) require_same_noise(at::kCPU, offload);
}

TEST(GpuRecompute, DrawsTheSameRandomNumbers) {
  run_on_gpus(1, [](World& world) {
    for (const bool offload : {false, true}) require_same_noise(world.device(), offload);
  });
}

// A sharded model on GPUs against the same without recomputation.
TEST(GpuRecompute, GivesTheSameBits) {
  for (const int ranks : {1, 2})
    run_on_gpus(ranks, [](World& world) {
      std::map<bool, Tensors> ends;
      for (const bool again : {false, true}) {
        torch::manual_seed(2);
        auto model = fully_shard(world, make_net(), sharded_by(by_type<BlockImpl>()));
        AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
        for (int step = 0; step < 4; ++step) {
          const Tensor x = torch::full({4, 6}, 0.1 * (step + world.rank()), world.device());
          const Tensor y = model.run([&](NetImpl& net) {
            Tensor h = net.in(x);
            for (Block& block : net.blocks) {
              auto run = [block](const Tensor& in) mutable { return block(in); };
              h = again ? recompute({.offload_inputs = step % 2 == 1}, run, h) : run(h);
            }
            return net.out(h);
          });
          loss_of(y).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        for (const Tensor& slice : model.parameters()) ends[again].push_back(slice.detach().clone());
      }
      for (size_t i = 0; i < ends[false].size(); ++i) require(ends[false][i].equal(ends[true][i]), "bits");
    });
}

TEST(Recompute, WithoutKeepingThemItDrawsOthers) {
  torch::manual_seed(5);
  Tensors seen;
  const auto fn = [&](const Tensor& x) {
    seen.push_back(torch::rand({8}));
    return x * 2;
  };
  recompute({.keep_rng = false}, fn, torch::ones({2}).requires_grad_()).sum().backward();
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_FALSE(seen[0].equal(seen[1]));
}

TEST(Recompute, KeepsAutocast) {
  const Tensor weight = torch::randn({4, 4}).requires_grad_();
  std::vector<at::ScalarType> seen;
  const auto fn = [&](const Tensor& x) {
    const Tensor y = torch::mm(x, weight);
    seen.push_back(y.scalar_type());
    return y;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = recompute(fn, torch::randn({2, 4}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  y.sum().backward();
  EXPECT_THAT(seen, ::testing::ElementsAre(at::kBFloat16, at::kBFloat16));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Recompute, WhatCannotBeRightIsRefusedInWords) {
  const Tensor x = torch::ones({3}).requires_grad_();
  const Tensor outside = x * 2;
  EXPECT_THAT(refusal([&] { recompute([&](const Tensor& in) { return in * outside; }, x).sum().backward(); }),
              HasSubstr("captured a tensor that was computed outside"));
  EXPECT_THAT(refusal([&] {
                recompute([](const Tensor& in) { return in.square(); }, x)
                    .sum()
                    .backward({}, std::nullopt, /*create_graph=*/true);
              }),
              HasSubstr("create_graph"));
  int calls = 0;
  EXPECT_THAT(
      refusal([&] { recompute([&](const Tensor& in) { return in.repeat({++calls}); }, x).sum().backward(); }),
      HasSubstr("another shape in backward"));
  EXPECT_THAT(refusal([] { every_block(0); }), HasSubstr("every_block(0)"));
  EXPECT_TRUE(recompute([](const Tensor& in) { return in * 3; }, outside).requires_grad()) << "goes on";
}

TEST(Recompute, PoliciesChooseBlocks) {
  std::vector<int64_t> twice;
  for (const BlockPolicy& policy :
       {every_block(), every_block(2), BlockPolicy([](int64_t block) { return block == 1; })}) {
    torch::nn::Sequential net;
    std::vector<int> calls(4);
    for (size_t i = 0; i < 4; ++i)
      net->push_back(torch::nn::Functional([&calls, i](const Tensor& x) {
        ++calls[i];
        return x.sin();
      }));
    const Tensor x = torch::randn({5}).requires_grad_();
    const Tensor y = recompute_sequential(*net, x, policy);
    EXPECT_TRUE(y.equal(x.sin().sin().sin().sin()));
    y.sum().backward();
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(calls[i], policy(static_cast<int64_t>(i)) ? 2 : 1) << i;
  }
}

template <class Model, class Config>
void expect_same_model(Config config, const BlockPolicy& policy) {
  const auto train = [&](bool again) {
    torch::manual_seed(3);
    config.run_block = again ? recompute_blocks(policy) : BlockRunner();
    Model model(config);
    const Tensor ids = torch::arange(24).remainder(config.vocab_size).view({2, 12});
    model->forward(ids, ids).backward();
    Tensors grads;
    for (const Tensor& param : model->parameters()) grads.push_back(param.grad());
    return grads;
  };
  const Tensors plain = train(false), again = train(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;
}

TEST(Recompute, TheModelsTakeAPolicy) {
  for (const BlockPolicy& policy : {every_block(), every_block(2)}) {
    expect_same_model<models::GPT2LMHeadModel>(
        models::GPT2Config{
            .vocab_size = 32, .n_positions = 16, .n_embd = 16, .n_layer = 4, .n_head = 2, .dropout = 0.1},
        policy);
    expect_same_model<models::LlamaForCausalLM>(models::LlamaConfig{.vocab_size = 32,
                                                                    .hidden_size = 16,
                                                                    .num_hidden_layers = 4,
                                                                    .num_attention_heads = 2,
                                                                    .max_position_embeddings = 16},
                                                policy);
  }
}

// Activations of one block at a time, and of the others their inputs; no unit is gathered more often.
TEST(Recompute, HoldsTheActivationsOfOneBlock) {
  run_ranks(2, [](World& world) {
    constexpr int64_t kBlocks = 8, kRows = 2048;
    int64_t peaks[2] = {};
    int64_t gathers[2] = {};
    for (const bool again : {false, true}) {
      torch::nn::Sequential net;
      for (int64_t i = 0; i < kBlocks; ++i) net->push_back(Block(32));
      auto model = fully_shard(world, net, {.wrap = by_type<BlockImpl>(), .share_shards = false});
      const auto step = [&] {
        const Tensor y = model.run([&](torch::nn::SequentialImpl& all) {
          const Tensor x = torch::ones({kRows, 32});
          return again ? recompute_sequential(all, x) : all.forward(x);
        });
        y.sum().backward();
        model.zero_grad();
      };
      for (int i = 0; i < 3; ++i) step();
      const int64_t before = model.unit_counts().front().gathers;
      AllocatorWatch memory;
      step();
      peaks[again ? 1 : 0] = memory.peak_bytes();
      gathers[again ? 1 : 0] = model.unit_counts().front().gathers - before;
    }
    if (world.rank() == 0)
      std::printf("activations of %ld blocks: %ld bytes, computed again: %ld\n", kBlocks, peaks[0], peaks[1]);
    // One block computes while the gradients of another go away.
    const int64_t inputs = kBlocks * kRows * 32 * 4;
    require(peaks[1] <= inputs + 2 * peaks[0] / kBlocks, "memory");
    require(gathers[0] == gathers[1], "gathers");
  });
}

}  // namespace
}  // namespace fsdp::testing
