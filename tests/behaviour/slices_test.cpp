// Promise: what a program does to the slices of model.parameters() is followed, or refused in words; so is
// what it does to the module's tree.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

Tensor slice_of(const ShardedModel& model, const std::string& name) { return model.named_parameters()[name]; }

// Freezes or thaws a parameter: through its slice, or in the plain model itself.
void set_frozen(ShardedTwin<NetImpl>& twin, const std::string& name, bool frozen) {
  slice_of(twin, name).set_requires_grad(!frozen);
}
void set_frozen(PlainTwin<NetImpl>& twin, const std::string& name, bool frozen) {
  twin.module().named_parameters()[name].set_requires_grad(!frozen);
}

TEST(Slices, FreezingASliceFreezesItsParameter) {
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                set_frozen(model, "in.weight", now.step % 3 == 1);
                set_frozen(model, "block1.up.bias", now.step == 2 || now.step == 3);
                model.backward(loss_of(model(now.randn({4, 6}))));
              },
              usual_variants(), {.steps = 6});
}

TEST(Slices, ModuleAndSliceAgreeAfterEitherIsFrozen) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    Tensor whole = model.module().in->weight;
    Tensor slice = slice_of(model, "in.weight");
    const auto step = [&] { loss_of(model(torch::ones({4, 6}))).backward(); };
    slice.set_requires_grad(false);
    step();
    require(!whole.requires_grad() && !slice.grad().defined(), "the slice froze it");
    whole.set_requires_grad(true);
    step();
    require(slice.requires_grad() && slice.grad().defined(), "the module thawed it");
    whole.set_requires_grad(false);
    slice.set_requires_grad(false);
    step();
    require(!whole.requires_grad() && !slice.requires_grad(), "both froze it");
  });
}

struct CountsGradients : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable&) override {}
};

TEST(Slices, HooksOnSlicesAreRefused) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    const auto step = [&] { loss_of(model(torch::ones({4, 6}))).backward(); };
    step();
    Tensor slice = slice_of(model, "block0.up.weight");
    const auto refused = [&](const std::string& what) {
      const std::string words = refusal(step);
      require_words(words, what + " on the slice of parameter 'block0.up.weight'");
      require_words(words, "model.on_gradient()");
    };
    const unsigned handle = slice.register_hook([](const Tensor&) {});
    refused("a hook");
    slice.remove_hook(handle);
    step();
    torch::autograd::impl::set_post_acc_grad_hooks(slice, std::make_unique<CountsGradients>());
    refused("a hook");
    torch::autograd::impl::set_post_acc_grad_hooks(slice, nullptr);
    step();
    require(slice.grad().defined(), "the model trains on");
  });
}

// What a program does to the module after it was sharded, and the parameter that the refusal names.
struct TreeChange {
  std::string name, parameter;
  std::function<void(NetImpl&)> does;
};

std::vector<TreeChange> tree_changes() {
  return {{"replaced", "'block1.norm.weight'",
           [](NetImpl& net) { net.blocks[1] = Block(net.replace_module("block1", Block(8))); }},
          {"replaced inside a block", "'block2.down.weight'",
           [](NetImpl& net) {
             net.blocks[2]->down = net.blocks[2]->replace_module("down", torch::nn::Linear(16, 8));
           }},
          {"unregistered", "'out.weight'", [](NetImpl& net) { net.unregister_module("out"); }},
          {"a new module", "'adapter.weight'",
           [](NetImpl& net) { net.register_module("adapter", torch::nn::Linear(8, 8)); }},
          {"a new parameter", "'scale'",
           [](NetImpl& net) { net.register_parameter("scale", torch::ones({8})); }}};
}

TEST(Slices, AChangedModuleIsRefused) {
  for (const TreeChange& change : tree_changes()) {
    SCOPED_TRACE(change.name);
    EXPECT_NO_THROW(run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
      loss_of(model(torch::ones({4, 6}))).backward();
      change.does(model.module());
      const std::string words = refusal([&] { model(torch::ones({4, 6})); });
      require_words(words, change.parameter);
      require_words(words, "after fully_shard()");
    }));
  }
}

TEST(Slices, ModulesWithoutParametersMayChange) {
  run_ranks(2, [](World& world) {
    auto net = make_seeded(make_net);
    net->register_module("drop", torch::nn::Dropout(0.5));
    auto model = fully_shard(world, net, sharded_by(by_type<BlockImpl>()));
    for (int step = 0; step < 3; ++step) {
      net->replace_module("drop", torch::nn::Dropout(0.1));
      net->register_module("act" + std::to_string(step), torch::nn::Tanh());
      loss_of(model(torch::ones({4, 6}))).backward();
    }
    net->unregister_module("drop");
    loss_of(model(torch::ones({4, 6}))).backward();
  });
}

}  // namespace
}  // namespace fsdp::testing
