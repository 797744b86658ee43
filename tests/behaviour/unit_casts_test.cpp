// Promise: with cast_unit_inputs, units of different dtypes work together in a module that casts nothing.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

// Three layers and a number; the middle layer is to compute in another dtype.
struct SandwichImpl : torch::nn::Module {
  SandwichImpl() {
    const SeededHere seeded(9);
    first = register_module("first", torch::nn::Linear(6, 8));
    middle = register_module("middle", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 4));
    scale = last->register_parameter("scale", torch::full({4}, 1.25));
  }
  Tensor forward(const Tensor& x) {
    const Tensor a = first(x);
    const Tensor b = middle(a);
    const Tensor c = last(b) * (scale * 0.1);
    seen = {a.scalar_type(), b.scalar_type(), c.scalar_type()};
    return c;
  }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  Tensor scale;
  std::vector<at::ScalarType> seen;
};

Tensor input() { return torch::linspace(-1, 1, 18).view({3, 6}); }

// The same by hand: every parameter cast to its compute dtype, every input to its layer's.
Tensor by_hand(const SandwichImpl& net) {
  const auto linear = [](const torch::nn::Linear& layer, const Tensor& x, at::ScalarType type) {
    return torch::linear(x.to(type), layer->weight.to(type), layer->bias.to(type));
  };
  const Tensor a = linear(net.first, input(), at::kBFloat16);
  const Tensor b = linear(net.middle, a, at::kFloat);
  return linear(net.last, b, at::kBFloat16) * (net.scale.to(at::kBFloat16) * 0.1);
}

ShardOptions mixed(bool casts, const Precision& middle = fp32()) {
  ShardOptions options{.wrap = by_type<torch::nn::LinearImpl>(), .precision = bf16()};
  options.cast_unit_inputs = casts;
  options.unit = [middle](const std::string& unit) {
    return unit == "middle" ? UnitOptions{.precision = middle} : UnitOptions{};
  };
  return options;
}

Tensor loss_of(const Tensor& y) { return y.to(at::kFloat).square().mean(); }

template <class Body>
void unit_casts_each_size(Body body) {
  for (const int ranks : {1, 2}) run_ranks(ranks, body);
}

// Every rank has the same batch, and an average of two equal gradients is exact.
TEST(UnitCasts, AreThoseThatAProgramWouldWrite) {
  unit_casts_each_size([](World& world) {
    SandwichImpl plain;
    const Tensor wanted = by_hand(plain);
    loss_of(wanted).backward();
    auto model = fully_shard(world, std::make_shared<SandwichImpl>(), mixed(true));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      const Tensor got = model(input());
      require(model.module().seen == std::vector{at::kBFloat16, at::kFloat, at::kBFloat16}, "dtypes");
      require(at::equal(got, wanted), "forward");
      loss_of(got).backward();
      const auto whole = model.full_params(FullParamsOptions{.gradients = true});
      const auto params = model.module().named_parameters();
      for (const auto& item : plain.named_parameters())
        require(at::equal(params[item.key()].grad(), item.value().grad()), "gradient of " + item.key());
    }
  });
}

TEST(UnitCasts, AreNotMadeUnlessAskedFor) {
  unit_casts_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<SandwichImpl>(), mixed(false));
    require(refusal([&] { model(input()); }) != "not refused", "LibTorch refuses bf16 times fp32");
    Precision alone = fp32();
    alone.cast_inputs = false;
    auto other = fully_shard(world, std::make_shared<SandwichImpl>(), mixed(true, alone));
    require(refusal([&] { other(input()); }) != "not refused", "nor are the inputs of this unit cast");
  });
}

TEST(UnitCasts, OutputsOfAUnitAreCastWhereItSaysSo) {
  unit_casts_each_size([](World& world) {
    Precision middle = fp32();
    middle.output = at::kBFloat16;
    auto model = fully_shard(world, std::make_shared<SandwichImpl>(), mixed(true, middle));
    loss_of(model(input())).backward();
    require(model.module().seen == std::vector{at::kBFloat16, at::kBFloat16, at::kBFloat16}, "dtypes");
  });
}

TEST(UnitCasts, WholeParametersAreUsedAsTheyAre) {
  unit_casts_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<SandwichImpl>(), mixed(true));
    SandwichImpl plain;
    const at::NoGradGuard no_grad;
    const auto whole = model.full_params();
    require(at::equal(model.module().forward(input()), plain.forward(input())), "all in fp32");
  });
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    layer = register_module("layer", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
  }
  Tensor forward(const Tensor& x) { return norm(layer(x)); }
  torch::nn::Linear layer{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(UnitCasts, RunningStatisticsAreStillUpdated) {
  unit_casts_each_size([](World& world) {
    ShardOptions options{.wrap = by_type<torch::nn::LinearImpl, torch::nn::BatchNorm1dImpl>(),
                         .precision = bf16()};
    options.cast_unit_inputs = true;
    options.unit = [](const std::string& unit) {
      return unit == "norm" ? UnitOptions{.precision = fp32()} : UnitOptions{};
    };
    auto model = fully_shard(world, std::make_shared<NormedImpl>(), options);
    const Tensor before = model.module().norm->running_mean.clone();
    const Tensor y = model(input());
    require(y.scalar_type() == at::kFloat, "the norm computes in fp32");
    require(!at::equal(model.module().norm->running_mean, before), "running_mean moved");
    loss_of(y).backward();
  });
}

}  // namespace
}  // namespace fsdp::testing
