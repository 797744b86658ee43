// Promise: fsdp::Recomputed<Block> is activation checkpointing by a change of a type: same bits, less memory.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"
#include "support/allocator_watch.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(bool recomputed) {
    for (int i = 0; i < 3; ++i) {
      if (recomputed)
        layers->push_back(Recomputed<Block>(8));
      else
        layers->push_back(Block(8));
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Deep);

// Arguments of every kind that a forward takes.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(int64_t width) { linear = register_module("linear", torch::nn::Linear(width, width)); }
  std::tuple<Tensor, Tensor> forward(Tensor x, const std::optional<Tensor>& mask, int64_t times, bool negate,
                                     const Tensor& absent) {
    ++calls;
    Tensor y = x;
    for (int64_t i = 0; i < times; ++i) y = linear(y).tanh();
    if (mask) y = y * *mask;
    if (absent.defined()) y = y + absent;
    x = y * 2;  // an argument by value is the function's own
    return {negate ? -y : y, x};
  }
  torch::nn::Linear linear{nullptr};
  int calls = 0;
};
TORCH_MODULE(Mixed);

struct ConstImpl : torch::nn::Module {
  ConstImpl() { weight = register_parameter("weight", torch::ones({4})); }
  Tensor forward(const Tensor& x) const { return (x * weight).sin(); }
  Tensor weight;
};
TORCH_MODULE(Const);

TEST(Recomputed, TrainsToTheBitsOfThePlainModel) {
  const auto train = [](const World& world, bool recomputed) {
    const auto make = [&] {
      const SeededHere seeded(3);
      return std::make_shared<DeepImpl>(recomputed);
    };
    auto model = fully_shard(world, make(), sharded_by(by_type<BlockImpl>()));
    require(model.unit_counts().size() == 3, "a unit per block");
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    std::vector<Tensor> seen;
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = loss_of(model(torch::full({4, 8}, 0.1 * (step + world.rank()))));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      seen.push_back(loss.detach());
    }
    for (const Tensor& slice : model.parameters()) seen.push_back(slice.detach().clone());
    return seen;
  };
  run_ranks(2, [&](World& world) {
    const auto plain = train(world, false), again = train(world, true);
    for (size_t i = 0; i < plain.size(); ++i)
      require(plain[i].equal(again[i]), "tensor " + std::to_string(i));
  });
}

TEST(Recomputed, KeepsNamesAndTypesOfTheModel) {
  run_ranks(2, [](World& world) {
    const auto names = [](const torch::nn::Module& module) {
      std::vector<std::string> all;
      for (const auto& item : module.named_parameters()) all.push_back(item.key());
      return all;
    };
    require(names(DeepImpl(true)) == names(DeepImpl(false)), "names of parameters");
    for (const char* type : {"Block", "BlockImpl"}) {
      auto model = fully_shard(world, std::make_shared<DeepImpl>(true), {.wrap = by_type_name({type})});
      require(model.unit_counts().size() == 3, std::string("units by the name ") + type);
    }
  });
}

TEST(Recomputed, TakesEveryKindOfArgument) {
  const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(4);
  for (const bool with_mask : {false, true})
    for (const bool with_last : {false, true}) {
      Mixed plain(4);
      Recomputed<Mixed> again(4);
      {
        const torch::NoGradGuard no_grad;
        again->linear->weight.copy_(plain->linear->weight);
        again->linear->bias.copy_(plain->linear->bias);
      }
      const Tensor value = torch::randn({2, 4}, generator);
      const std::optional<Tensor> mask =
          with_mask ? std::optional(torch::rand({2, 4}, generator)) : std::nullopt;
      const Tensor last = with_last ? torch::ones({2, 4}) : Tensor();
      std::vector<Tensor> gradients;
      const auto run = [&](auto& module) {
        Tensor x = value.clone().requires_grad_();
        const auto [a, b] = module->forward(x, mask, 2, true, last);
        (a.sum() + b.square().sum()).backward();
        gradients.push_back(x.grad());
        gradients.push_back(module->linear->weight.grad());
      };
      run(plain);
      run(again);
      EXPECT_TRUE(gradients[0].equal(gradients[2]) && gradients[1].equal(gradients[3]));
      EXPECT_EQ(plain->calls, 1);
      EXPECT_EQ(again->calls, 2);
    }
}

TEST(Recomputed, ConstForwardsAndAnyModuleWork) {
  torch::nn::AnyModule any(Recomputed<Const>{});
  const Tensor x = torch::randn({4}).requires_grad_();
  any.forward(x).sum().backward();
  EXPECT_TRUE(x.grad().allclose(x.detach().cos()));
}

// The graph may outlive the program's handle.
TEST(Recomputed, TheGraphKeepsTheModule) {
  Tensor loss;
  std::weak_ptr<torch::nn::Module> alive;
  {
    Recomputed<Block> block(8);
    alive = block.ptr();
    loss = loss_of(block(torch::ones({4, 8})));
  }
  EXPECT_FALSE(alive.expired());
  loss.backward();
  loss = Tensor();
  EXPECT_TRUE(alive.expired());
}

// LibTorch clones layers in replicate(), TransformerEncoder and wherever a program asks for it.
TEST(Recomputed, ClonesAreRecomputedToo) {
  const auto held = [](auto call) {
    const Tensor x = torch::ones({512, 64});
    const AllocatorWatch watch;
    const Tensor loss = loss_of(call(x));
    return watch.live_bytes();
  };
  torch::nn::Linear plain(64, 64);
  Recomputed<torch::nn::Linear> linear(64, 64);
  linear->recompute_options.keep_rng = false;
  torch::nn::Sequential two(linear, torch::nn::Tanh());
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(two->clone());
  ASSERT_NE(copy, nullptr);
  const auto inner = std::dynamic_pointer_cast<RecomputedImpl<torch::nn::LinearImpl>>(copy->ptr(0));
  ASSERT_NE(inner, nullptr);
  EXPECT_FALSE(inner->recompute_options.keep_rng);
  EXPECT_TRUE(inner->weight.equal(linear->weight));
  EXPECT_FALSE(inner->weight.is_alias_of(linear->weight));
  EXPECT_TRUE(inner->parameters()[0].is_same(inner->weight));
  loss_of(copy->forward(torch::ones({4, 64}))).backward();
  EXPECT_TRUE(inner->weight.grad().defined() && !linear->weight.grad().defined());
  torch::nn::AnyModule any = torch::nn::AnyModule(linear).clone();
  EXPECT_LT(held([&](const Tensor& x) { return any.forward(x); }),
            held([&](const Tensor& x) { return plain(torch::tanh(plain(x))); }));
}

TEST(Recomputed, KeepsNoActivations) {
  const auto held = [](auto block) {
    const Tensor x = torch::ones({512, 64});
    const AllocatorWatch watch;
    const Tensor loss = loss_of(block(x));
    return watch.live_bytes();
  };
  EXPECT_LT(2 * held(Recomputed<Block>(64)), held(Block(64)));
}

TEST(Recomputed, OptionsAreThoseOfRecompute) {
  Recomputed<Block> block(8);
  block->recompute_options.keep_rng = false;
  EXPECT_NO_THROW(loss_of(block(torch::ones({4, 8}))).backward());
}

}  // namespace
}  // namespace fsdp::testing
