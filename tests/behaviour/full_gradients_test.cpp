// Promise: full_params() shows whole gradients where asked, writes them back, and takes a part of the model.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

// Parameters of several shapes: a matrix, a vector, a number, channels last, and one that nobody uses.
struct ShapesImpl : torch::nn::Module {
  ShapesImpl() {
    const SeededHere seeded(5);
    layer = register_module("layer", torch::nn::Linear(5, 7));
    kernel =
        register_parameter("kernel", torch::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
    scale = register_parameter("scale", torch::tensor(1.5));
    unused = register_parameter("unused", torch::ones({6}));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x).square().mean() * scale + kernel.square().sum(); }
  torch::nn::Linear layer{nullptr};
  at::Tensor kernel, scale, unused;
};

at::Tensor input() { return torch::linspace(-1, 1, 15).view({3, 5}); }

std::vector<ShardOptions> ways() {
  std::vector<ShardOptions> all;
  for (const auto strategy : {Strategy::full_shard, Strategy::no_shard})
    for (const bool layers : {false, true})
      all.push_back({.wrap = layers ? by_type<torch::nn::LinearImpl>() : whole_model(),
                     .strategy = strategy,
                     .replicate_below = layers ? 8 : 0,
                     .gradients = ReduceOp::sum});
  return all;
}

void each_way(const std::function<void(World&, Sharded<ShapesImpl>&)>& body) {
  for (const ShardOptions& options : ways())
    for (const int ranks : {1, 2, 3})
      run_ranks(ranks, [&](World& world) {
        auto model = fully_shard(world, std::make_shared<ShapesImpl>(), options);
        body(world, model);
      });
}

// Every rank has the same batch, so the sum over ranks is the gradient times their number, to the bit:
// doubling is exact, and 2g + g rounds as 3g does.
torch::OrderedDict<std::string, at::Tensor> plain_gradients(int ranks) {
  ShapesImpl plain;
  plain.forward(input()).backward();
  torch::OrderedDict<std::string, at::Tensor> all;
  for (const auto& item : plain.named_parameters())
    all.insert(item.key(), item.value().grad().defined() ? item.value().grad() * ranks : at::Tensor());
  return all;
}

void require_gradients(const torch::nn::Module& module,
                       const torch::OrderedDict<std::string, at::Tensor>& wanted, double factor = 1) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& want = wanted[item.key()];
    const at::Tensor got = item.value().grad();
    require(got.defined() == want.defined(), item.key() + ": a gradient where there should be one");
    require(!got.defined() || at::equal(got, want * factor), item.key());
  }
}

// The module's own .grad() throws outside of the scope, as before it.
void require_trap(const ShapesImpl& module) {
  const at::Tensor grad = module.layer->weight.grad();
  require(refusal([&] { grad.sum(); }) != "not refused", "outside of the scope .grad() cannot be read");
}

TEST(FullParamsGradients, AreThoseOfThePlainModel) {
  each_way([](World& world, Sharded<ShapesImpl>& model) {
    const auto wanted = plain_gradients(world.size());
    for (int step = 0; step < 3; ++step) {
      model(input()).backward();
      {
        const auto whole = model.full_params(FullParamsOptions{.gradients = true});
        const auto inside = model.full_params(FullParamsOptions{.gradients = true});
        require_gradients(model.module(), wanted);
        const at::NoGradGuard no_grad;
        for (auto& param : model.module().parameters())
          if (param.grad().defined()) param.mutable_grad().zero_();
      }
      require_trap(model.module());
      {
        const auto again = model.full_params(FullParamsOptions{.gradients = true});
        require_gradients(model.module(), wanted);  // what was not written back is lost
      }
      model.zero_grad();
      const auto none = model.full_params(FullParamsOptions{.gradients = true});
      for (const auto& param : model.module().parameters()) require(!param.grad().defined(), "none is left");
    }
  });
}

TEST(FullParamsGradients, AreWrittenBack) {
  each_way([](World& world, Sharded<ShapesImpl>& model) {
    auto wanted = plain_gradients(world.size());
    model(input()).backward();
    {
      const auto whole = model.full_params(FullParamsOptions{.write_back = true, .gradients = true});
      ShapesImpl& net = model.module();
      const at::NoGradGuard no_grad;
      net.layer->weight.mutable_grad().mul_(2);
      net.layer->bias.mutable_grad() = net.layer->bias.grad() * 2;
      net.kernel.mutable_grad().mul_(2);
      net.unused.mutable_grad() = torch::arange(6.0);
      net.scale.mutable_grad() = at::Tensor();
    }
    require_trap(model.module());
    wanted["unused"] = torch::arange(6.0) / 2;
    wanted["scale"] = at::Tensor();
    const auto whole = model.full_params(FullParamsOptions{.gradients = true});
    require_gradients(model.module(), wanted, 2);
    for (const auto& item : model.named_parameters())
      require(item.value().grad().defined() == (item.key() != "scale"), item.key() + ": the slice");
  });
}

// A step of the optimizer and the next backward go on from what was written.
TEST(FullParamsGradients, WrittenBackTheyAreStepped) {
  each_way([](World&, Sharded<ShapesImpl>& model) {
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    ShapesImpl plain;
    torch::optim::SGD plain_optimizer(plain.parameters(), 0.5);
    for (int step = 0; step < 3; ++step) {
      plain.forward(input()).backward();
      model(input()).backward();
      const auto whole = model.full_params(FullParamsOptions{.write_back = true, .gradients = true});
      const at::NoGradGuard no_grad;
      for (auto& param : plain.parameters())
        if (param.grad().defined()) param.mutable_grad().fill_(step + 1);
      for (auto& param : model.module().parameters())
        if (param.grad().defined()) param.mutable_grad().fill_(step + 1);
    }
    optimizer.step();
    plain_optimizer.step();
    require_same(state_of(model), state_of(plain));
  });
}

TEST(FullParamsGradients, OnRank0InHostMemory) {
  each_way([](World& world, Sharded<ShapesImpl>& model) {
    const auto wanted = plain_gradients(world.size());
    model(input()).backward();
    {
      const auto whole =
          model.full_params(FullParamsOptions{.rank0_only = true, .offload = true, .gradients = true});
      if (world.rank() == 0)
        require_gradients(model.module(), wanted);
      else
        require_trap(model.module());
    }
    require_trap(model.module());
  });
}

TEST(FullParamsGradients, KeepTheirDtype) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, std::make_shared<ShapesImpl>(),
                               {.precision = {.reduce = at::kBFloat16, .keep_low_precision_grads = true}});
      model(input()).backward();
      const auto whole = model.full_params(FullParamsOptions{.gradients = true});
      const at::Tensor grad = model.module().kernel.grad();
      require(grad.scalar_type() == at::kBFloat16, "bf16 gradients of fp32 parameters");
      require(at::equal(grad, (2 * model.module().kernel.detach()).to(at::kBFloat16)), "2 x");
    });
}

bool readable(const at::Tensor& tensor) {
  return refusal([&] { tensor.detach().sum(); }) == "not refused";
}

TEST(FullParamsRecurse, TakesAModulesOwnParameters) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](World& world) {
      auto model =
          fully_shard(world, std::make_shared<ShapesImpl>(), {.wrap = by_type<torch::nn::LinearImpl>()});
      const ShapesImpl& net = model.module();
      {
        const auto own = model.full_params(FullParamsOptions{.recurse = false});
        require(readable(net.kernel) && readable(net.scale), "the module's own");
        require(!readable(net.layer->weight), "not those of a module inside");
      }
      {
        const auto layer = model.full_params(FullParamsOptions{.module = "layer", .recurse = false});
        require(readable(net.layer->weight) && !readable(net.kernel), "of the layer");
      }
      const auto all = model.full_params();
      require(readable(net.layer->weight) && readable(net.kernel), "all");
    });
}

TEST(FullParamsRecurse, AModuleWithoutParametersOfItsOwnIsRefused) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, torch::nn::Sequential(torch::nn::Linear(3, 3)));
    require_words(refusal([&] { const auto none = model.full_params(FullParamsOptions{.recurse = false}); }),
                  "no parameter lies directly under ''");
  });
}

}  // namespace
}  // namespace fsdp::testing
