// Promise: recompute() gives the gradients that a plain call gives, and no others.
#include <ATen/autocast_mode.h>
#include <fsdp/recompute.h>
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

Tensor recomputed(NetImpl& net, const Tensor& x, bool nested) {
  Tensor h = net.in(x);
  for (Block& block : net.blocks) {
    const auto run = [block](const Tensor& in) mutable { return block(in); };
    h = nested ? recompute([run](const Tensor& in) { return recompute(run, in) * 1.0; }, h)
               : recompute(run, h);
  }
  return net.out(h);
}

Tensor plain(NetImpl& net, const Tensor& x) {
  Tensor h = net.in(x);
  for (Block& block : net.blocks) h = block(h);
  return net.out(h);
}

Tensor some_input() { return torch::linspace(-1, 1, 24).view({4, 6}).set_requires_grad(true); }

TEST(RecomputeInputs, GradientsOfInputsAloneLeaveParametersAlone) {
  for (const bool nested : {false, true}) {
    const auto net = make_same_net();
    const Tensor x = some_input();
    const Tensor wanted = torch::autograd::grad({plain(*net, x).sum()}, {x})[0];
    const Tensor got = torch::autograd::grad({recomputed(*net, x, nested).sum()}, {x})[0];
    EXPECT_TRUE(got.equal(wanted));
    for (const auto& param : net->named_parameters())
      EXPECT_FALSE(param.value().grad().defined()) << param.key();
    EXPECT_FALSE(x.grad().defined());
  }
}

TEST(RecomputeInputs, AlsoInAShardedModelBetweenItsSteps) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
      for (int step = 0; step < 3; ++step) {
        loss_of(model.run([&](NetImpl& net) { return recomputed(net, some_input(), false); })).backward();
        std::vector<Tensor> before;
        for (const Tensor& slice : model.parameters()) before.push_back(slice.grad().clone());
        const Tensor x = some_input();
        const Tensor y = model.run([&](NetImpl& net) { return recomputed(net, x, false); });
        const Tensor got = torch::autograd::grad({y.sum()}, {x})[0];
        const Tensor wanted =
            torch::autograd::grad({model.run([&](NetImpl& net) { return plain(net, x); }).sum()}, {x})[0];
        require(got.equal(wanted), "gradients of the input");
        for (size_t i = 0; i < before.size(); ++i)
          require(model.parameters()[i].grad().equal(before[i]), "gradients are as they were");
        model.zero_grad();
      }
    });
}

TEST(RecomputeInputs, ABackwardToGivenTensorsGivesThoseAlone) {
  for (const bool nested : {false, true}) {
    const auto net = make_same_net();
    const Tensor x = some_input();
    const Tensor weight = net->blocks[1]->up->weight;
    const auto wanted = torch::autograd::grad({plain(*net, x).sum()}, {x, weight});
    for (const Tensor& given : {x, weight}) {
      const Tensor loss = recomputed(*net, x, nested).sum();
      torch::autograd::backward({loss}, {}, /*retain_graph=*/false, /*create_graph=*/false, {given});
    }
    EXPECT_TRUE(x.grad().equal(wanted[0]));
    for (const auto& param : net->named_parameters())
      EXPECT_EQ(param.value().grad().defined(), param.value().is_same(weight)) << param.key();
    EXPECT_TRUE(weight.grad().equal(wanted[1]));
  }
}

// As without recomputation, a hook of a parameter sees its gradient once, when all calls have added to it.
TEST(RecomputeInputs, HooksOfParametersSeeTheirGradientOnce) {
  torch::nn::Linear linear(3, 3);
  int calls = 0;
  linear->weight.register_hook([&](const Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  const auto fn = [linear](const Tensor& x) { return linear.ptr()->forward(x); };
  const Tensor x = torch::ones({2, 3});
  fn(fn(x)).sum().backward();
  const Tensor wanted = linear->weight.grad().clone();
  linear->zero_grad();
  recompute(fn, recompute(fn, x)).sum().backward();
  EXPECT_TRUE(linear->weight.grad().equal(wanted));
  EXPECT_EQ(calls, 2);
}

TEST(RecomputeInputs, WhatNobodyUsesHasNoGradient) {
  torch::nn::Linear used(4, 4), unused(4, 4);
  const auto fn = [used, unused](const Tensor& x) mutable {
    return std::tuple<Tensor, Tensor>(used(x), unused(x));
  };
  std::get<0>(recompute(fn, torch::ones({2, 4}))).sum().backward();
  EXPECT_TRUE(used->weight.grad().defined());
  EXPECT_FALSE(unused->weight.grad().defined());
}

TEST(RecomputeInputs, AFunctionThatWritesToItsInputIsRefused) {
  torch::nn::Linear linear(4, 4);
  const auto fn = [linear](const Tensor& in) mutable {
    Tensor x = in;
    return linear(x.div_(2));
  };
  try {
    recompute(fn, torch::ones({2, 4}));
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("wrote to one of its inputs"));
  }
}

// One whole step under autocast: LibTorch keeps casts of parameters until its cache is cleared.
TEST(RecomputeInputs, CastsOfParametersAreNotKept) {
  const auto step = [](bool again, Tensor& weight, bool ends_first) {
    const auto fn = [&](const Tensor& x) { return torch::mm(x, weight); };
    const Tensor x = torch::ones({2, 4});
    at::autocast::set_autocast_enabled(c10::kCPU, true);
    const auto end = [] {
      at::autocast::set_autocast_enabled(c10::kCPU, false);
      at::autocast::clear_cache();
    };
    const Tensor y = again ? recompute(fn, x) : fn(x);
    const Tensor z = fn(x);  // must not find a cast of the first run, which has no graph
    if (ends_first) end();
    (y.sum() + 2 * z.sum()).backward();
    if (!ends_first) end();
    return y.detach().to(at::kFloat).clone();
  };
  for (const bool ends_first : {true, false}) {
    Tensor weight = torch::full({4, 4}, 0.3).requires_grad_(),
           plain = weight.detach().clone().requires_grad_();
    for (int k = 0; k < 2; ++k) {
      EXPECT_TRUE(step(true, weight, ends_first).equal(step(false, plain, ends_first))) << k;
      ASSERT_TRUE(weight.grad().defined());
      EXPECT_TRUE(weight.grad().equal(plain.grad()));
      const at::NoGradGuard no_grad;
      weight.sub_(weight.grad());
      plain.sub_(plain.grad());
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
