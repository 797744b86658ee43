// Promise: what programs do that our own tests did not think of gives the numbers of a plain loop. One test
// per kind of program; random ones are in tests/fuzz.
#include <gtest/gtest.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int kExactSteps = 4;

std::vector<ShardOptions> exact_options() {
  std::vector<ShardOptions> all;
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    for (const bool share : {true, false}) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.strategy = strategy;
      options.share_shards = share;
      all.push_back(options);
    }
  return all;
}

Tensor squares(const std::vector<Tensor>& params) {
  Tensor total = torch::zeros({});
  for (const Tensor& p : params) total = total + p.square().sum();
  return 0.1 * total;
}

// This rank's slices of whole gradients, compared; the order of two terms does not show.
void require_near_gradients(const ShardedModel& model, const State& wanted, const std::string& when) {
  for (const auto& item : model.named_parameters())
    for (const auto& shard : model.parameter_info(item.key()).shards) {
      if (!shard.is_local || shard.size == 0) continue;
      const bool used = wanted.contains(item.key());
      require(item.value().grad().defined() == used, when + ": " + item.key() + " has a gradient, or none");
      if (!used) continue;
      const Tensor slice = wanted.at(item.key()).flatten().narrow(0, shard.start, shard.size);
      require(torch::allclose(item.value().grad(), slice, 1e-5, 1e-7),
              when + ": the gradient of " + item.key());
    }
}

// The mean over ranks of the model's gradients, and the penalty's, which every rank has of its slices alone.
State plain_penalty(int ranks) {
  const auto net = make_seeded(make_net);
  PlainTrainer trainer(*net, ranks);
  trainer.backward([&](int rank) {
    return loss_of(net->forward(Moment{0, rank, ranks}.randn({4, 6}))) + squares(net->parameters());
  });
  return trainer.gradients();
}

TEST(Exact, APenaltyOverSlicesIsAddedWheneverItIsComputed) {
  for (const int ranks : {1, 2, 3}) {
    const State wanted = plain_penalty(ranks);
    for (const ShardOptions& options : exact_options())
      for (const bool first : {true, false})
        for (const bool kept_back : {false, true})
          run_ranks(ranks, [&](World& world) {
            auto model = fully_shard(world, make_seeded(make_net), options);
            const Tensor x = Moment{0, world.rank(), ranks}.randn({4, 6});
            {
              std::optional<NoSync> kept;
              if (kept_back) kept.emplace(model.engine());
              const Tensor before = first ? squares(model.parameters()) : Tensor();
              const Tensor loss = loss_of(model(x));
              (loss + (first ? before : squares(model.parameters()))).backward();
            }
            if (kept_back) (0 * loss_of(model(x))).backward();
            require_near_gradients(model, wanted,
                                   std::string(first ? "first" : "last") + (kept_back ? ", kept back" : ""));
          });
  }
}

TEST(Exact, WhatIsWrittenInsideRunIsSeenByTheNextForward) {
  for (const int ranks : {1, 2})
    for (const bool narrow : {false, true})
      for (ShardOptions options : exact_options()) {
        if (narrow) options.precision = bf16();
        run_ranks(ranks, [&](World& world) {
          const at::NoGradGuard no_grad;
          auto model = fully_shard(world, make_seeded(make_net), options);
          const Tensor x = Moment{}.randn({4, 6}).to(narrow ? at::kBFloat16 : at::kFloat);
          const auto [before, after] = model.run([&](NetImpl& net) {
            const Tensor first = net.forward(x);
            for (Tensor& slice : model.parameters()) slice.zero_();
            return std::pair(first, net.forward(x));
          });
          require(before.abs().max().item<float>() > 0, "the first forward has the old values");
          require(after.abs().max().item<float>() == 0, "the second forward has the new values");
        });
      }
}

TEST(Exact, ALoopInsideRunTrainsAsOutside) {
  const auto train = [](const ShardOptions& options, bool inside) {
    State state;
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), options);
      torch::optim::SGD optimizer(model.parameters(), 0.05);
      const auto step = [&](int s, const std::function<Tensor(const Tensor&)>& forward) {
        loss_of(forward(Moment{s, world.rank(), 2}.randn({4, 6}))).backward();
        optimizer.step();
        optimizer.zero_grad();
      };
      if (inside)
        model.run([&](NetImpl& net) {
          for (int s = 0; s < kExactSteps; ++s) step(s, [&](const Tensor& x) { return net.forward(x); });
        });
      else
        for (int s = 0; s < kExactSteps; ++s) step(s, [&](const Tensor& x) { return model(x); });
      const State mine = state_of(model);
      if (world.rank() == 0) state = mine;
    });
    return state;
  };
  for (const ShardOptions& options : exact_options())
    EXPECT_EQ(difference(train(options, true), train(options, false)), "");
}

TEST(Exact, AKeptGradientStaysAsItWas) {
  for (const int ranks : {1, 2})
    for (const bool narrow : {false, true})
      for (ShardOptions options : exact_options()) {
        if (narrow) options.precision = bf16();
        run_ranks(ranks, [&](World& world) {
          auto model = fully_shard(world, make_seeded(make_net), options);
          std::vector<Tensor> kept, copies;
          for (int s = 0; s < kExactSteps; ++s) {
            loss_of(model(Moment{s, world.rank(), ranks}.randn({4, 6}))).backward();
            for (const Tensor& slice : model.parameters()) {
              kept.push_back(slice.grad());
              copies.push_back(slice.grad().clone());
            }
            model.zero_grad();
          }
          for (size_t i = 0; i < kept.size(); ++i)
            require(kept[i].equal(copies[i]), "gradient " + std::to_string(i) + " was not written again");
        });
      }
}

TEST(Exact, FullParamsMayComeRightAfterFreezing) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    loss_of(model(Moment{}.randn({4, 6}))).backward();
    model.zero_grad();
    for (auto& param : model.module().parameters()) param.set_requires_grad(false);
    { const auto whole = model.full_params(); }
    for (auto& param : model.module().parameters()) param.set_requires_grad(true);
    loss_of(model(Moment{}.randn({4, 6}))).backward();
    for (const Tensor& slice : model.parameters()) require(slice.grad().defined(), "thawed parameters train");
  });
}

TEST(Exact, SetDataInsideFullParamsKeepsTheModelWhole) {
  for (const bool offload : {false, true})
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
      {
        const auto whole = model.full_params(FullParamsOptions{.write_back = true, .offload = offload});
        for (auto& param : model.module().parameters()) param.set_data(torch::zeros_like(param));
      }
      require(model(Moment{}.randn({4, 6})).abs().max().item<float>() == 0, "the new values are there");
      loss_of(model(Moment{}.randn({4, 6}))).backward();
    });
}

// Blocks whose gates each rank uses or not: inside the unit, so ranks may differ.
struct GatedBlockImpl : torch::nn::Module {
  GatedBlockImpl() {
    block = register_module("block", Block(8));
    gate = register_parameter("gate", torch::zeros({8}));
  }
  Tensor forward(const Tensor& x, bool gated) {
    const Tensor h = block(x);
    return gated ? h * (gate + 1) : h;
  }
  Block block{nullptr};
  Tensor gate;
};
TORCH_MODULE(GatedBlock);

struct GatedImpl : torch::nn::Module {
  GatedImpl() {
    first = register_module("first", GatedBlock());
    second = register_module("second", GatedBlock());
    third = register_module("third", GatedBlock());
  }
  Tensor forward(const Tensor& x, bool gated, bool early) {
    return third(second(first(x, gated && early), gated && !early), false);
  }
  GatedBlock first{nullptr}, second{nullptr}, third{nullptr};
};

TEST(Exact, AParameterThatSomeRanksBeginToUse) {
  for (const int ranks : {2, 3})
    for (const bool early : {true, false})
      for (const ShardOptions& given : exact_options()) {
        ShardOptions options = given;
        options.wrap = by_type<GatedBlockImpl>();
        run_ranks(ranks, [&](World& world) {
          auto model = fully_shard(world, make_seeded([] { return std::make_shared<GatedImpl>(); }), options);
          const auto plain = make_seeded([] { return std::make_shared<GatedImpl>(); });
          PlainTrainer trainer(*plain, ranks);
          for (int s = 0; s < 6; ++s) {
            // From the third step on one rank uses the gate, then in one of two forwards only.
            const auto loss = [&](auto&& call, int r) {
              const Moment now{s, r, ranks};
              const bool gated = s >= 2 && r == 1;
              const Tensor one = loss_of(call(now.randn({4, 8}), gated, early));
              return s < 4 ? one : one + loss_of(call(now.randn({4, 8}, 1), false, early));
            };
            loss(model, world.rank()).backward();
            trainer.backward([&](int r) {
              return loss([&](const Tensor& x, bool g, bool e) { return plain->forward(x, g, e); }, r);
            });
            const State wanted = trainer.gradients();
            require(wanted.contains(early ? "first.gate" : "second.gate") == (s >= 2), "the gate is used");
            require_near_gradients(model, wanted, "step " + std::to_string(s));
            model.zero_grad();
            trainer.load();
          }
        });
      }
}

// All-reduces of the world a step, once plans are made.
double all_reduces_a_step(const std::function<void(Sharded<NetImpl>&, int)>& step, int period) {
  double counted = 0;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    const auto count = [&] {
      int64_t n = 0;
      for (const OpStats& one : model.comm_stats())
        if (one.op == "all_reduce") n = one.count;
      return n;
    };
    const auto run = [&](int from, int to) {
      for (int s = from; s < to; ++s) {
        step(model, s);
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    run(0, 6 * period);
    const int64_t before = count();
    run(6 * period, 16 * period);
    if (world.rank() == 0) counted = static_cast<double>(count() - before) / (10 * period);
  });
  return counted;
}

TEST(Exact, CyclesThatComeInTurnAreAllPlanned) {
  const Tensor x = Moment{}.randn({4, 6});
  const double plain = all_reduces_a_step([&](auto& model, int) { loss_of(model(x)).backward(); }, 1);
  // A judge: real and made samples, then made ones alone.
  const double judge = all_reduces_a_step(
      [&](auto& model, int s) {
        Tensor loss = loss_of(model(x));
        if (s % 2 == 0) loss = loss + loss_of(model(x * 2));
        loss.backward();
      },
      2);
  // Blocks that are left out, each in turn.
  const double dropped = all_reduces_a_step(
      [&](auto& model, int s) {
        model.run([&](NetImpl& net) {
          Tensor h = net.in(x);
          for (size_t i = 0; i < net.blocks.size(); ++i)
            if (static_cast<int>(i) != s % 4) h = net.blocks[i](h);
          loss_of(net.out(h)).backward();
        });
      },
      4);
  // Frozen in every second step, as a judge is while the maker trains.
  const double frozen = all_reduces_a_step(
      [&](auto& model, int s) {
        for (auto& param : model.module().blocks[1]->parameters()) param.set_requires_grad(s % 2 == 0);
        loss_of(model(x)).backward();
      },
      2);
  std::printf("all-reduces a step: plain %.2f, judge %.2f, dropped blocks %.2f, frozen in turn %.2f\n", plain,
              judge, dropped, frozen);
  EXPECT_EQ(judge, plain);
  EXPECT_EQ(dropped, plain);
  EXPECT_EQ(frozen, plain);
}

// Through a codec, complex numbers keep both parts and integers all digits.
TEST(Exact, CodecsAndParametersOfOtherTypes) {
  struct KindsImpl : torch::nn::Module {
    KindsImpl() {
      wave = register_parameter("wave", torch::complex(torch::full({6}, 2.0), torch::full({6}, 0.5)));
      count = register_parameter("count", torch::full({6}, 1001, torch::kLong), /*requires_grad=*/false);
    }
    Tensor forward(const Tensor& x) {
      return x * (torch::real(wave) + 3 * torch::imag(wave)) + count.to(x.scalar_type());
    }
    Tensor wave, count;
  };
  run_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(whole_model());
    options.gather_codec = cast_codec(at::kBFloat16);
    options.reduce_codec = cast_codec(at::kBFloat16);
    auto model = fully_shard(world, std::make_shared<KindsImpl>(), options);
    const Tensor y = model(torch::ones({6}));
    require(y.equal(torch::full({6}, 2.0 + 1.5 + 1001)), "values went through the codec whole");
    y.sum().backward();
    const Tensor& grad = model.named_parameters()["wave"].grad();
    require(torch::real(grad).eq(1).all().item<bool>() && torch::imag(grad).eq(3).all().item<bool>(),
            "gradients keep their imaginary part");
  });
}

}  // namespace
}  // namespace fsdp::testing
