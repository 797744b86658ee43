// Promise: on_gradient() tells every slice's gradient once, while the backward goes on.
#include <gtest/gtest.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr int kToldSteps = 6;

State told_run(const World& world, ShardOptions options, bool told) {
  auto model = fully_shard(world, make_same_net(), options);
  int calls = 0;
  const auto update = [](Tensor& slice) {
    const torch::NoGradGuard no_grad;
    slice.detach().sub_(slice.grad(), 0.1);
    slice.mutable_grad() = Tensor();
  };
  if (told)
    model.on_gradient([&](const std::string&, Tensor& slice) {
      ++calls;
      update(slice);
    });
  for (int step = 0; step < kToldSteps; ++step) {
    Tensor loss = loss_of(model(net_batch(step * world.size() + world.rank())));
    calls = 0;
    loss.backward();
    int owned = 0;
    for (Tensor& slice : model.parameters()) {
      ++owned;  // also slices without elements
      if (told) require(!slice.grad().defined(), "it was told and dropped: step " + std::to_string(step));
      if (!told) update(slice);
    }
    if (told) require(calls == owned, std::to_string(calls) + " calls for " + std::to_string(owned));
  }
  return state_of(model);
}

TEST(ToldGradients, WhoIsToldMayUpdateWhileTheBackwardGoesOn) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      for (const bool share : {true, false})
        for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
          for (const bool narrow : {false, true}) {
            ShardOptions options = sharded_by(by_type<BlockImpl>());
            options.share_shards = share;
            options.strategy = strategy;
            if (narrow) options.precision = bf16();
            require_same(told_run(world, options, true), told_run(world, options, false));
          }
    });
}

// The gradient memory of a unit is free before the next one's is needed.
TEST(ToldGradients, GradientsThatWereToldAreGoneBeforeTheBackwardEnds) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.share_shards = false;
      auto model = fully_shard(world, make_same_net(), options);
      std::vector<std::string> order;
      size_t before_in = 0;
      model.on_gradient([&](const std::string& name, Tensor& slice) {
        order.push_back(name);
        slice.mutable_grad() = Tensor();
      });
      for (int step = 0; step < 4; ++step) {
        order.clear();
        Tensor h = model.run([&](NetImpl& net) {
          Tensor in = net.in(net_batch(step));
          in.register_hook([&](const Tensor& grad) {  // of the first layer's result, the last but one
            before_in = order.size();
            return grad;
          });
          for (auto& block : net.blocks) in = block(in);
          return net.out(in);
        });
        loss_of(h).backward();
      }
      require(before_in > 0, "blocks are told before the backward reaches the first layer");
      require(order.size() >= before_in, "and the rest later");
    });
}

// check_gradients promises that parameters are unchanged when it throws.
TEST(ToldGradients, WhereTheyAreCheckedNobodyIsToldBefore) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      ShardOptions options = sharded_by(by_type<BlockImpl>());
      options.check_gradients = true;
      auto model = fully_shard(world, make_same_net(), options);
      model.on_gradient([](const std::string&, Tensor& slice) {
        const torch::NoGradGuard no_grad;
        slice.detach().sub_(slice.grad(), 0.1);
        slice.mutable_grad() = Tensor();
      });
      for (int step = 0; step < 3; ++step) loss_of(model(net_batch(world.rank()))).backward();
      const State before = state_of(model);
      Tensor x = net_batch(world.rank()).clone();
      model.run([&](NetImpl& net) {
        Tensor h = net.in(x);
        h.register_hook([](const Tensor& grad) { return grad * INFINITY; });
        for (Block& block : net.blocks) h = block(h);
        const Tensor loss = loss_of(net.out(h));
        require_words(refusal([&] { loss.backward(); }), "gradients are not finite");
      });
      require_same(state_of(model), before);
    });
}

}  // namespace
}  // namespace fsdp::testing
