// Promise: whatever a training program does with a model, it may do with a sharded one, and gets the same
// bits.
#include <gmock/gmock.h>

#include <barrier>
#include <thread>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Answer {
  Tensor y;
  std::tuple<Tensor, int64_t> rest;
};

struct ManyArgumentsImpl : torch::nn::Module {
  ManyArgumentsImpl() {
    a = register_module("a", torch::nn::Linear(6, 12));
    b = register_module("b", torch::nn::Linear(12, 6));
  }
  Answer forward(const Tensor& x, const Tensors& more, std::optional<Tensor> mask, int64_t times,
                 std::unique_ptr<double> scale, bool twice = false) {
    Tensor h = x;
    for (const Tensor& one : more) h = h + one;
    for (int64_t i = 0; i < times; ++i) h = b(torch::tanh(a(h)));
    if (mask) h = h * *mask;
    if (twice) h = h * 2;
    return {h * *scale, {h.sum(), times}};
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

TEST(Running, ForwardTakesAndReturnsWhateverTheModuleDoes) {
  expect_same([] { return std::make_shared<ManyArgumentsImpl>(); },
              [](auto& model, const Moment& now) {
                const Tensor x = now.randn({4, 6});
                const Answer one = model(x, Tensors{now.randn({4, 6}, 1), x}, std::optional<Tensor>(x.gt(0)),
                                         2, std::make_unique<double>(0.5));
                const Answer two =
                    model(x, Tensors{}, std::nullopt, int64_t{1}, std::make_unique<double>(2), true);
                model.see(one.y);
                model.see(std::get<0>(two.rest));
                model.backward(loss_of(one.y) + std::get<0>(two.rest));
              });
}

TEST(Running, RunCallsOtherMethods) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6});
    const Tensor half = model.run([&](NetImpl& net) { return net.blocks[0](net.in(x)); });
    int calls = 0;
    model.run([&](NetImpl&) { ++calls; });
    const auto pair = model.run([&](NetImpl& net) { return std::pair(net.out(half), calls); });
    model.see(pair.first);
    model.backward(loss_of(pair.first) * pair.second);
  });
}

TEST(Running, SeveralForwardsBeforeOneBackward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    Tensor loss = loss_of(model(now.randn({4, 6})));
    loss = loss + loss_of(model(now.randn({3, 6}, 1)));
    loss = loss + loss_of(model(now.randn({2, 6}, 2)));
    model.backward(loss);
  });
}

TEST(Running, ForwardForwardBackwardBackward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor first = loss_of(model(now.randn({4, 6})));
    const Tensor second = loss_of(model(now.randn({4, 6}, 1)));
    model.backward(first);
    model.backward(second);
  });
}

TEST(Running, ForwardsAndBackwardsInterleaved) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor first = loss_of(model(now.randn({4, 6})));
    const Tensor second = loss_of(model(now.randn({4, 6}, 1)));
    model.backward(second);
    const Tensor third = loss_of(model(now.randn({4, 6}, 2)));
    model.backward(first);
    model.backward(third);
  });
}

TEST(Running, ForwardWithoutBackwardThenTraining) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    if (now.step % 2 == 0) model.see(model(now.randn({4, 6}, 1)));
    model.backward(loss_of(model(now.randn({4, 6}))));
    if (now.step % 3 == 1) model.see(model(now.randn({4, 6}, 2)));
  });
}

TEST(Running, EvaluationBetweenStepsSeesTheNewWeights) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    for (int i = 0; i < now.step % 3; ++i) {
      const torch::NoGradGuard no_grad;
      model.see(model(now.randn({4, 6}, 1 + i)));
    }
    model.backward(loss_of(model(now.randn({4, 6}))));
  });
}

TEST(Running, EvaluationBetweenForwardAndBackward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor loss = loss_of(model(now.randn({4, 6})));
    if (now.step % 2 == 1) {
      const torch::NoGradGuard no_grad;
      model.see(model(now.randn({4, 6}, 1)));
      model.see(model.run([&](NetImpl& net) {
        return net.out(net.blocks[2](net.in(now.randn({2, 6}, 2))));
      }));
    }
    model.backward(loss, true);
    if (now.step % 2 == 0) {
      const torch::NoGradGuard no_grad;
      model.see(model(now.randn({4, 6}, 3)));
    }
    model.backward(loss);
  });
}

TEST(Running, InferenceMode) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    {
      const c10::InferenceMode inference;
      model.see(model(now.randn({4, 6}, 1)));
    }
    const Tensor loss = loss_of(model(now.randn({4, 6})));
    if (now.step > 2) {
      const c10::InferenceMode inference;
      model.see(model(now.randn({4, 6}, 2)));
    }
    model.backward(loss);
  });
}

TEST(Running, AModuleUsedTwiceInOneForward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor y = model.run([&](NetImpl& net) {
      Tensor h = net.blocks[0](net.in(now.randn({4, 6})));
      return net.out(net.blocks[0](net.blocks[1](net.blocks[0](h))));
    });
    model.backward(loss_of(y));
  });
}

TEST(Running, InputsThatNeedGradientsGetThem) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6}).requires_grad_();
    model.backward(loss_of(model(x)));
    model.see(x.grad());
  });
}

TEST(Running, BackwardTwiceOverOneGraph) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6}).requires_grad_();
    const Tensor loss = loss_of(model(x));
    model.backward(loss, true);
    model.backward(loss, true);
    model.backward(loss);
    model.see(x.grad());
  });
}

TEST(Running, GradientPenalty) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6}).requires_grad_();
    const Tensor y = torch::tanh(model(x));
    const Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    model.see(slope);
    model.backward(loss_of(y) + slope.norm());
  });
}

TEST(Running, GradientPenaltyInsideForward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor loss = model.run([&](NetImpl& net) {
      const Tensor x = now.randn({4, 6}).requires_grad_();
      const Tensor y = torch::tanh(net.forward(x));
      return loss_of(y) + torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0].norm();
    });
    model.backward(loss);
  });
}

// Forward without a graph; backward runs forward again.
struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  using Fn = std::function<Tensor(const Tensor&)>;
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Fn* fn) {
    context->save_for_backward({x});
    context->saved_data["fn"] = reinterpret_cast<int64_t>(fn);
    const torch::NoGradGuard no_grad;
    return (*fn)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto* fn = reinterpret_cast<const Fn*>(context->saved_data["fn"].toInt());
    Tensor y;
    {
      const at::AutoGradMode grad(true);
      y = (*fn)(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

TEST(Running, RecomputationInsideBackward) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    std::vector<RecomputedBlock::Fn> fns;
    const Tensor y = model.run([&](NetImpl& net) {
      for (auto& block : net.blocks) fns.push_back([&](const Tensor& x) { return block(x); });
      Tensor h = net.in(now.randn({4, 6}));
      for (const auto& fn : fns) h = RecomputedBlock::apply(h, &fn);
      return now.step % 2 == 0 ? net.out(h) : h;
    });
    model.backward(loss_of(y));
  });
}

TEST(Running, AnotherBranchEveryFewSteps) {
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                const Tensor y = model.run([&](NetImpl& net) {
                  Tensor h = net.in(now.randn({4, 6}));
                  const int way = now.step / 2 % 4;
                  if (way == 0) h = net.blocks[1](net.blocks[0](h));
                  if (way == 1) h = net.blocks[0](net.blocks[1](h));
                  if (way == 2) h = net.blocks[2](h);
                  return way == 3 ? h : net.out(h);
                });
                model.backward(loss_of(y));
              },
              usual_variants(), {.steps = 17});
}

TEST(Running, AnExceptionInForwardLeavesTheModelUsable) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const auto failing = [&] {
      model.run([&](NetImpl& net) -> Tensor {
        const Tensor h = net.blocks[0](net.in(now.randn({4, 6}, 1)));
        if (h.defined()) throw std::out_of_range("of the user");
        return h;
      });
    };
    if (now.step % 2 == 0) {
      EXPECT_THROW(failing(), std::out_of_range);
    }
    const Tensor loss = loss_of(model(now.randn({4, 6})));
    if (now.step % 2 == 1) {
      EXPECT_THROW(failing(), std::out_of_range);
    }
    EXPECT_THROW(model(now.randn({4, 7})), c10::Error);
    model.backward(loss);
  });
}

// A backward that fails in the middle of the blocks.
template <class Model>
void fail_in_backward(Model& model, const Moment& now) {
  const Tensor y = model.run([&](NetImpl& net) {
    Tensor h = net.blocks[0](net.in(now.randn({4, 6}, 1)));
    h.register_hook([](const Tensor&) { throw std::out_of_range("of the user"); });
    return net.out(net.blocks[2](net.blocks[1](h)));
  });
  EXPECT_THROW(model.backward(loss_of(y)), std::out_of_range);
  model.drop_gradients();
}

TEST(Running, AnExceptionInBackwardLeavesTheModelUsable) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    if (now.step % 2 == 1) fail_in_backward(model, now);
    model.backward(loss_of(model(now.randn({4, 6}))));
  });
}

TEST(Running, ABackwardAfterOneThatFailedIsWhole) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    const Tensor loss = loss_of(model(now.randn({4, 6})));
    fail_in_backward(model, now);
    model.backward(loss);
  });
}

TEST(Running, FullParamsAfterABackwardThatFailed) {
  const auto wanted = state_of(*make_seeded(make_net));
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      ShardedTwin twin(world, fully_shard(world, make_seeded(make_net)));
      fail_in_backward(twin, twin.now());
      require_same(state_of(twin), wanted);
    });
  }
}

// Two threads that read one unit at once; the second waits until it is there.
TEST(Running, ThreadsInsideForward) {
  struct Split : torch::nn::Module {
    Split() { layer = register_module("layer", torch::nn::Linear(64, 64)); }
    Tensor forward(const Tensor& x) {
      Tensor other;
      std::barrier together(2);
      std::thread thread([&] {
        const at::NoGradGuard no_grad;
        together.arrive_and_wait();
        other = x.mm(layer->weight);
      });
      const at::NoGradGuard no_grad;
      together.arrive_and_wait();
      const Tensor mine = x.mm(layer->weight);
      thread.join();
      return (mine - other).abs().max() + mine.abs().sum();
    }
    torch::nn::Linear layer{nullptr};
  };
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      const auto module = std::make_shared<Split>();
      const Tensor x = torch::ones({2, 64});
      auto model = fully_shard(world, module, {.wrap = by_size(100), .precision = {.param = at::kDouble}});
      const Tensor first = model(x);
      for (int i = 0; i < 100; ++i) require(model(x).equal(first), "the same every time");
    });
}

}  // namespace
}  // namespace fsdp::testing
