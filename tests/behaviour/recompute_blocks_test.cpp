// Promise: a block computed again in backward has the effects of one plain call: on the sums of gradients, on
// buffers and on generators. What has other effects is refused.
#include <fsdp/recompute.h>
#include <gmock/gmock.h>
#include <torch/jit.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ::testing::HasSubstr;

using RunBlock = std::function<Tensor(const Block& block, const Tensor& x)>;
using NetProgram = std::function<Tensor(NetImpl& net, const Tensor& x, const RunBlock& run)>;

// --- Sums: gradients of a parameter come from several recomputed calls in one backward.

Tensor first_block_twice(NetImpl& net, const Tensor& x, const RunBlock& run) {
  return net.out(run(net.blocks[0], run(net.blocks[1], run(net.blocks[0], net.in(x)))));
}

Tensor every_block_once(NetImpl& net, const Tensor& x, const RunBlock& run) {
  Tensor h = net.in(x);
  for (const Block& block : net.blocks) h = run(block, h);
  return net.out(h);
}

Tensor nested_calls(NetImpl& net, const Tensor& x, const RunBlock& run) {
  const auto pair = [&net, run](const Tensor& h) { return run(net.blocks[1], run(net.blocks[0], h)); };
  const Tensor h = recompute(pair, net.in(x));
  return net.out(recompute(pair, run(net.blocks[2], h)));
}

// The plain twin computes plainly.
template <class Model>
RunBlock runner_of(const Model& /*model*/) {
  return [](const Block& block, const Tensor& x) {
    const auto plain = [block](const Tensor& in) { return Block(block)(in); };
    return std::is_base_of_v<ShardedModel, Model> ? recompute(plain, x) : plain(x);
  };
}

TEST(RecomputeBlocks, CalledTwiceGiveTheBitsOfThePlainLoop) {
  for (const NetProgram& program : {NetProgram(first_block_twice), NetProgram(nested_calls)})
    expect_same(make_net, [&](auto& model, const Moment& now) {
      model.backward(loss_of(model.run([&](NetImpl& net) {
        return program(net, now.randn({4, 6}), runner_of(model));
      })));
    });
}

TEST(RecomputeBlocks, TwoForwardsBeforeOneBackwardGiveTheBitsOfThePlainLoop) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    Tensor loss = torch::zeros({});
    for (int k = 0; k < 2; ++k)
      loss = loss + loss_of(model.run([&](NetImpl& net) {
               return every_block_once(net, now.randn({4, 6}, k), runner_of(model));
             }));
    model.backward(loss);
  });
}

uint64_t hash_of_training(const World& world, const NetProgram& program, int forwards, bool recomputed) {
  ShardOptions options = sharded_by(by_type<BlockImpl>());
  options.reproducible = Reproducible{.microbatches = 4, .seed = 5};
  auto model = fully_shard(world, make_same_net(), options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const RunBlock run = [&](const Block& block, const Tensor& x) {
    const auto noisy = [block](const Tensor& in) { return torch::dropout(Block(block)(in), 0.3, true); };
    return recomputed ? recompute(noisy, x) : noisy(x);
  };
  for (int step = 0; step < 4; ++step) {
    for (int i = world.rank(); i < 4; i += world.size()) {
      Tensor loss = torch::zeros({});
      for (int k = 0; k < forwards; ++k)
        loss = loss + loss_of(model.run([&](NetImpl& net) {
                 return program(net, net_batch((step * 4 + i) * 2 + k), run);
               }));
      loss.backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return model.state_hash();
}

TEST(RecomputeBlocks, ReproducibleModeHasTheSameBitsOnAnyNumberOfRanks) {
  const std::pair<NetProgram, int> programs[] = {
      {first_block_twice, 1}, {every_block_once, 2}, {nested_calls, 1}};
  for (const auto& one : programs) {
    const NetProgram& program = one.first;
    const int forwards = one.second;
    uint64_t wanted = 0;
    run_ranks(1, [&](World& world) { wanted = hash_of_training(world, program, forwards, false); });
    // Threads would draw from one generator.
    for (const int ranks : {1, 2, 4})
      run_processes(ranks, [&](World& world) {
        require(hash_of_training(world, program, forwards, true) == wanted, "another hash");
      });
  }
}

// A function of the user's that goes back through a graph of its own.
struct OwnBackward : torch::autograd::Function<OwnBackward> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, BlockImpl* block) {
    ctx->save_for_backward({x});
    ctx->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x);
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grads) {
    const Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    reinterpret_cast<BlockImpl*>(ctx->saved_data.at("block").toInt())->forward(x).backward(grads[0]);
    return {x.grad(), Tensor()};
  }
};

TEST(RecomputeBlocks, ReproducibleModeRefusesGradientsAfterTheirSum) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.reproducible = Reproducible{.microbatches = 2, .seed = 5};
      auto model = fully_shard(world, make_same_net(), options);
      const auto step = [&](bool twice) {
        loss_of(model.run([&](NetImpl& net) {
          Tensor h = OwnBackward::apply(net.in(net_batch(world.rank())), net.blocks[0].get());
          h = net.blocks[2](net.blocks[1](h));
          return net.out(twice ? OwnBackward::apply(h, net.blocks[0].get()) : h);
        })).backward();
      };
      const std::string said = refusal([&] { step(true); });
      require(said.find("came in two parts") != std::string::npos, said);
      model.zero_grad();
      for (int i = world.rank(); i < 2; i += world.size()) step(false);
      for (const Tensor& slice : model.parameters()) require(slice.grad().defined(), "it trains on");
    });
}

// --- Buffers that the block writes.

struct NormedImpl : torch::nn::Module {
  explicit NormedImpl(std::optional<double> momentum = 0.2) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    batch =
        register_module("batch", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(6).momentum(momentum)));
    instance = register_module(
        "instance", torch::nn::InstanceNorm1d(torch::nn::InstanceNormOptions(3).track_running_stats(true)));
    mean = register_buffer("mean", torch::zeros({6}));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = batch(linear(x));
    {
      const at::NoGradGuard no_grad;
      mean.mul_(0.9).add_(h.mean(0), 0.1);
    }
    return instance(h.view({-1, 3, 2})).view({-1, 6});
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
  torch::nn::InstanceNorm1d instance{nullptr};
  Tensor mean;
};
TORCH_MODULE(Normed);

enum class NormedBy : uint8_t { plain, recomputed, nested };

// Buffers and gradients after three backwards, of which each follows two forwards.
Tensors train_normed(std::optional<double> momentum, NormedBy way) {
  torch::manual_seed(3);
  Normed block(momentum);
  using Function = std::function<Tensor(const Tensor&)>;
  const Function run = [block](const Tensor& in) { return Normed(block)(in); };
  const Function outer = [run](const Tensor& in) { return recompute(run, in) * 1.0; };
  for (int step = 0; step < 6; step += 2) {
    Tensor loss = torch::zeros({});
    for (const Tensor& x : {net_batch(step), net_batch(step + 1)})
      loss = loss +
             loss_of(way == NormedBy::plain ? run(x) : recompute(way == NormedBy::nested ? outer : run, x));
    loss.backward();
  }
  Tensors all;
  for (const Tensor& buffer : block->buffers()) all.push_back(buffer.clone());
  for (const Tensor& param : block->parameters()) all.push_back(param.grad().clone());
  return all;
}

TEST(RecomputeBlocks, BuffersAreWrittenOnce) {
  for (const std::optional<double> momentum : {std::optional<double>(0.2), std::optional<double>()}) {
    const Tensors wanted = train_normed(momentum, NormedBy::plain);
    for (const NormedBy way : {NormedBy::recomputed, NormedBy::nested}) {
      const Tensors got = train_normed(momentum, way);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].equal(wanted[i])) << "tensor " << i << ", way " << static_cast<int>(way);
    }
  }
}

TEST(RecomputeBlocks, BuffersOfScriptsAreWrittenOnce) {
  const auto unit = torch::jit::compile(R"(
    def norm(x, mean, var):
      # type: (Tensor, Tensor, Tensor) -> Tensor
      return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)
  )");
  Tensor means[2], vars[2];
  for (const bool recomputed : {false, true}) {
    Tensor mean = torch::zeros({6}), var = torch::ones({6});
    const auto fn = [&](const Tensor& x) { return unit->run_method("norm", x, mean, var).toTensor(); };
    const Tensor x = net_batch(0).requires_grad_();
    loss_of(recomputed ? recompute(fn, x) : fn(x)).backward();
    means[recomputed ? 1 : 0] = mean;
    vars[recomputed ? 1 : 0] = var;
  }
  EXPECT_TRUE(means[0].equal(means[1]));
  EXPECT_TRUE(vars[0].equal(vars[1]));
}

TEST(RecomputeBlocks, BuffersOfShardedModelsAreWrittenOnce) {
  for (const bool sync : {false, true})
    run_ranks(2, [&](World& world) {
      Tensors ends[2];
      for (const bool recomputed : {false, true}) {
        torch::nn::Sequential net{Normed(), Normed()};
        double shift = 0;
        for (Tensor& param : net->parameters()) {
          const at::NoGradGuard no_grad;
          param.copy_((torch::arange(param.numel()) * 0.7 + ++shift).sin().view(param.sizes()));
        }
        auto model = fully_shard(world, net, {.wrap = by_type<NormedImpl>(), .sync_batchnorm = sync});
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          const Tensor x = net_batch(step * 2 + world.rank());
          loss_of(model.run([&](torch::nn::SequentialImpl& all) {
            return recomputed ? recompute_sequential(all, x) : all.forward(x);
          })).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        for (const Tensor& buffer : model.module().buffers())
          ends[recomputed ? 1 : 0].push_back(buffer.clone());
      }
      for (size_t i = 0; i < ends[0].size(); ++i) require(ends[0][i].equal(ends[1][i]), "buffers");
    });
}

// --- Parameters

TEST(RecomputeBlocks, RefusesParametersWrittenBeforeBackward) {
  torch::nn::Linear linear(4, 4);
  const auto fn = [linear](const Tensor& x) mutable { return linear(x); };
  const Tensor loss = recompute(fn, torch::ones({2, 4})).sum();
  {
    const at::NoGradGuard no_grad;
    linear->bias.add_(1);
  }
  EXPECT_THAT(refusal([&] { loss.backward(); }), HasSubstr("was written between forward and backward"));
  EXPECT_FALSE(linear->weight.grad().defined());
  recompute(fn, torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(linear->weight.grad().defined()) << "goes on";
}

TEST(RecomputeBlocks, RefusesShardedParametersWrittenBeforeBackward) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      const auto forward = [&] {
        return loss_of(model.run([](NetImpl& net) {
          return recompute([&net](const Tensor& x) { return net.forward(x); }, net_batch(1));
        }));
      };
      forward().backward();
      const Tensor before = forward();
      optimizer.step();
      const std::string said = refusal([&] { before.backward(); });
      require(said.find("was written between forward and backward") != std::string::npos, said);
      model.zero_grad();
      forward().backward();
      for (const Tensor& slice : model.parameters()) require(slice.grad().defined(), "goes on");
    });
}

TEST(RecomputeBlocks, FunctionsMayReturnTheirParameters) {
  torch::nn::Linear linear(3, 4);
  const auto fn = [linear](const Tensor& x) {
    return std::tuple<Tensor, Tensor, Tensor>(linear.ptr()->forward(x), linear->weight,
                                              linear->bias.view({2, 2}));
  };
  const auto gradients = [&](bool recomputed) {
    const Tensor x = torch::ones({2, 3});
    const auto [y, weight, bias] = recomputed ? recompute(fn, x) : fn(x);
    EXPECT_TRUE(weight.equal(linear->weight));
    (y.square().sum() + weight.sin().sum() + bias.cos().sum()).backward();
    EXPECT_TRUE(linear->weight.is_leaf());
    const Tensors found{linear->weight.grad(), linear->bias.grad()};
    linear->zero_grad();
    return found;
  };
  for (int k = 0; k < 2; ++k) {
    const Tensors wanted = gradients(false), got = gradients(true);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(got[i].allclose(wanted[i])) << i;
  }
}

TEST(RecomputeBlocks, FunctionsMayReturnShardedParameters) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor loss = model.run([&](NetImpl& net) {
      const auto fn = [&net](const Tensor& x) {
        return std::tuple<Tensor, Tensor>(net.blocks[0](x), net.blocks[1]->up->bias);
      };
      const Tensor x = net.in(now.randn({4, 6}));
      const auto [h, bias] =
          std::is_base_of_v<ShardedModel, std::remove_cvref_t<decltype(model)>> ? recompute(fn, x) : fn(x);
      return loss_of(net.out(net.blocks[2](h))) + bias.sin().sum();
    });
    model.backward(loss);
  });
}

// --- Calls that need no second run, or less than all of one.

TEST(RecomputeBlocks, FrozenBlocksArePlainCalls) {
  torch::nn::Linear linear(4, 4);
  for (const Tensor& param : linear->parameters()) param.set_requires_grad(false);
  int calls = 0;
  const auto fn = [&, linear](const Tensor& x) mutable {
    ++calls;
    return linear(x);
  };
  const Tensor y = recompute(fn, torch::ones({2, 4}));
  EXPECT_FALSE(y.requires_grad());
  const Tensor weight = torch::ones({4}).requires_grad_();
  (y * weight).sum().backward();
  EXPECT_EQ(calls, 1);
  recompute(fn, torch::ones({2, 4}).requires_grad_()).sum().backward();
  EXPECT_EQ(calls, 3) << "its input needs gradients";
}

TEST(RecomputeBlocks, FrozenBlocksAreGatheredAsInPlainCalls) {
  run_ranks(2, [](World& world) {
    int64_t gathers[2] = {};
    for (const bool recomputed : {false, true}) {
      auto net = make_same_net();
      for (const Block& block : net->blocks)
        for (const Tensor& param : block->parameters()) param.set_requires_grad(false);
      for (const Tensor& param : net->in->parameters()) param.set_requires_grad(false);
      auto model = fully_shard(world, net, {.wrap = by_type<BlockImpl>(), .share_shards = false});
      for (int step = 0; step < 4; ++step) {
        loss_of(model.run([&](NetImpl& all) {
          return every_block_once(all, net_batch(step), [&](const Block& block, const Tensor& x) {
            const auto fn = [block](const Tensor& in) { return Block(block)(in); };
            return recomputed ? recompute(fn, x) : fn(x);
          });
        })).backward();
        model.zero_grad();
      }
      for (const auto& unit : model.unit_counts()) gathers[recomputed ? 1 : 0] += unit.gathers;
    }
    require(gathers[0] == gathers[1],
            std::to_string(gathers[1]) + " gathers instead of " + std::to_string(gathers[0]));
  });
}

TEST(RecomputeBlocks, InputsMayBeUndefined) {
  const auto fn = [](const Tensor& x, const Tensor& mask) { return mask.defined() ? x * mask : x * 3; };
  for (const bool offload : {false, true}) {
    const Tensor x = torch::ones({3}).requires_grad_();
    recompute({.offload_inputs = offload}, fn, x, Tensor()).sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({3}, 3.0)));
  }
  const Tensor x = torch::ones({3}).requires_grad_();
  const auto [y, none] =
      recompute([](const Tensor& in) { return std::tuple<Tensor, Tensor>(in * 2, Tensor()); }, x);
  EXPECT_FALSE(none.defined());
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 2.0)));
}

TEST(RecomputeBlocks, ResultsWithoutGradientsStayWithoutThem) {
  const Tensor x = torch::ones({3}).requires_grad_();
  const auto [y, plain] =
      recompute([](const Tensor& in) { return std::tuple<Tensor, Tensor>(in * 2, in.detach() * 3); }, x);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(plain.requires_grad());
}

// --- Generators

TEST(RecomputeBlocks, GeneratorsOfTheUserAreReplayed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{9});
  Tensors seen;
  const auto fn = [&](const Tensor& x) {
    const Tensor noise = torch::rand({8}, generator);
    seen.push_back(noise);
    return x * noise * at::bernoulli(torch::full({8}, 0.5), generator);
  };
  const auto nested = [&](const Tensor& x) { return recompute(fn, x) * 1.0; };
  for (const bool inside : {false, true}) {
    seen.clear();
    const Tensor x = torch::ones({8}).requires_grad_();
    const Tensor y = inside ? recompute(nested, x) : recompute(fn, x);
    const Tensor next = torch::rand({8}, generator.clone());
    y.sum().backward();
    EXPECT_TRUE(x.grad().equal(y.detach()));
    for (const Tensor& noise : seen) EXPECT_TRUE(noise.equal(seen[0]));
    EXPECT_TRUE(torch::rand({8}, generator).equal(next)) << "goes on where forward left it";
  }
}

}  // namespace
}  // namespace fsdp::testing
