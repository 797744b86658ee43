// Promise: nothing in the runtime is made for one kind of device. A model trains on a device that LibTorch
// knows from outside only, by its allocator, guard and kernels, to the bits of the same training on the CPU.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/recompute.h>
#include <gtest/gtest.h>

#include <array>

#include "behaviour/toy_device.h"
#include "support/gloo.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kOtherDeviceSteps = 6;

struct OtherDeviceCase {
  int ranks;
  Strategy strategy;
  Optim optim;
  bool bf16 = false;
};

void PrintTo(const OtherDeviceCase& one, std::ostream* out) { *out << one.ranks << " ranks"; }

std::string other_device_test_name(const ::testing::TestParamInfo<OtherDeviceCase>& info) {
  const OtherDeviceCase& one = info.param;
  return "W" + std::to_string(one.ranks) + (one.bf16 ? "_bf16_" : "_fp32_") +
         std::to_string(static_cast<int>(one.strategy)) + "_" + std::to_string(static_cast<int>(one.optim));
}

State on_cpu(const World& world, State state) {
  for (auto& [name, value] : state) {
    require(value.device() == world.device(), name + " is on " + value.device().str());
    value = value.cpu();
  }
  return state;
}

class OtherDeviceRanks : public ::testing::Test {
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  }
};

class OtherDevice : public OtherDeviceRanks, public ::testing::WithParamInterface<OtherDeviceCase> {};

// Bits are equal: every kernel is the CPU's, on copies with the same strides, and a sum of two ranks has one
// order.
TEST_P(OtherDevice, TrainsToTheBitsOfTheCpu) {
  const OtherDeviceCase& one = GetParam();
  on_toy_ranks(one.ranks, [&](World& world) {
    const State wanted = train_plain(*make_learner("mlp"), one.ranks, kOtherDeviceSteps, one.optim,
                                     one.bf16 ? at::kBFloat16 : at::kFloat);
    auto model = fully_shard(world, make_learner("mlp"),
                             {.wrap = by_size(200),
                              .strategy = one.strategy,
                              .precision = one.bf16 ? bf16() : fp32(),
                              .comm = kToyComm});
    train_sharded(model, world, kOtherDeviceSteps, one.optim);
    require_same(on_cpu(world, state_of(model)), wanted);
  });
}

std::vector<OtherDeviceCase> cases() {
  std::vector<OtherDeviceCase> all;
  for (const int ranks : {1, 2}) {
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
      for (const bool bf16 : {false, true}) all.push_back({ranks, strategy, Optim::sgd, bf16});
    for (const auto optim : {Optim::adamw, Optim::fused_adamw})
      all.push_back({ranks, Strategy::full_shard, optim});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Toy, OtherDevice, ::testing::ValuesIn(cases()), other_device_test_name);

TEST_F(OtherDeviceRanks, HaveADeviceEach) {
  on_toy_ranks(2, [](World& world) {
    require(world.device() == toy_device(world.rank()), "rank on " + world.device().str());
  });
}

// Attention of the CPU has a kernel of its own; on other devices it is made of products and a softmax: equal
// to rounding, not to the bit.
TEST_F(OtherDeviceRanks, TrainATransformer) {
  for (const int ranks : {1, 2})
    on_toy_ranks(ranks, [&](World& world) {
      const State wanted = train_plain(*make_learner("gpt2"), ranks, kOtherDeviceSteps, Optim::sgd);
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200), .comm = kToyComm});
      train_sharded(model, world, kOtherDeviceSteps, Optim::sgd);
      const double found = drift(on_cpu(world, state_of(model)), wanted);
      require(found <= 1e-5, "drift " + std::to_string(found));
    });
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Embedding(11, 6),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})),
                               torch::nn::Linear(6, 5));
}

TEST_F(OtherDeviceRanks, MakeADeferredModelThere) {
  on_toy_ranks(2, [](World& world) {
    torch::manual_seed(3);
    const auto ordinary = make_net();
    torch::manual_seed(3);
    auto model = fully_shard(world, on_meta(make_net), {.comm = kToyComm});
    const auto whole = model.full_params();
    for (const auto& item : ordinary->named_parameters())
      require(model.module().named_parameters()[item.key()].cpu().equal(item.value()), item.key());
  });
}

// Every rank has the same batch, so the average is the gradient of one. Norms of shards are added in double.
TEST_F(OtherDeviceRanks, ScaleAndClip) {
  on_toy_ranks(2, [](World& world) {
    auto plain = make_learner("mlp");
    plain->forward(plain->batch(0)).backward();
    const double wanted = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e-3);
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200), .comm = kToyComm});
    const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
    GradScaler scaler(world, {.comm = kToyComm});
    scaler.scale(model(model.module().batch_on(0, world.device()))).backward();
    scaler.unscale_(*optimizer);
    const double norm = model.clip_grad_norm_(1e-3).item<double>();
    require(std::abs(norm - wanted) <= 1e-6 * wanted, "norm " + std::to_string(norm));
    require(scaler.step(*optimizer), "the gradients are finite");
  });
}

// Arguments come as the data loader has them, on the CPU.
TEST_F(OtherDeviceRanks, MoveArgumentsThere) {
  on_toy_ranks(2, [](World& world) {
    const auto learner = make_learner("mlp");
    auto model = fully_shard(world, learner, {.wrap = by_size(200), .comm = kToyComm});
    const at::Tensor wanted = model(learner->batch_on(world.rank(), world.device()));
    const at::Tensor found = model(learner->batch(world.rank()));
    require(found.device() == world.device(), "the loss is on " + found.device().str());
    require(found.cpu().equal(wanted.cpu()), "the same bits");
    found.backward();
  });
}

// Two layers and a gate, one unit each but for the gate, which lies with the first.
struct ToyGatedImpl : torch::nn::Module {
  ToyGatedImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    gate = first->register_parameter("gate", torch::ones({6}));
    second = register_module("second", torch::nn::Linear(6, 6));
  }
  at::Tensor forward(const at::Tensor& x, bool gated) {
    at::Tensor h = first(x);
    if (stops) throw std::runtime_error("it stops after the first layer");
    if (fails_back)
      h.register_hook([](const at::Tensor&) { throw std::runtime_error("a hook of the user's"); });
    if (gated) h = h * gate;
    return second(torch::tanh(h)).square().mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor gate;
  bool stops = false, fails_back = false;
};

ShardOptions toy_layers() { return {.wrap = by_type<torch::nn::LinearImpl>(), .comm = kToyComm}; }

// A parameter that all ranks begin to use at once gets its gradient; one that no rank uses any more has none,
// and an optimizer leaves it alone; one that some ranks use has it on all.
TEST_F(OtherDeviceRanks, MayChangeWhatTheyUse) {
  on_toy_ranks(2, [](World& world) {
    torch::manual_seed(1);
    auto model = fully_shard(world, std::make_shared<ToyGatedImpl>(), toy_layers());
    const at::Tensor x = torch::randn({3, 6}).to(world.device()).requires_grad_();
    const std::vector<std::array<bool, 2>> uses{{false, false}, {false, false}, {true, true},   {true, true},
                                                {true, false},  {false, false}, {false, false}, {true, true}};
    for (size_t s = 0; s < uses.size(); ++s) {
      model(x, uses[s][static_cast<size_t>(world.rank())]).backward();
      const at::Tensor slice = model.named_parameters()["first.gate"];
      require(slice.numel() == 0 || slice.grad().defined() == (uses[s][0] || uses[s][1]),
              "step " + std::to_string(s) + ": the gate's gradient");
      model.zero_grad();
    }
  });
}

TEST_F(OtherDeviceRanks, AreToldWhenOneAloneUsesMore) {
  std::string told;
  try {
    on_toy_ranks(2, [](World& world) {
      ShardOptions options = toy_layers();
      options.comm.timeout = std::chrono::milliseconds(5000);
      auto model = fully_shard(world, std::make_shared<ToyGatedImpl>(), options);
      const at::Tensor x = torch::randn({3, 6}).to(world.device()).requires_grad_();
      for (int s = 0; s < 4; ++s) {
        model(x, s == 3 && world.rank() == 1).backward();
        model.zero_grad();
      }
      model(x, false).backward();
    });
  } catch (const std::exception& error) {
    told = error.what();
  }
  EXPECT_NE(told.find("may begin to use a parameter only when all ranks do"), std::string::npos) << told;
}

// A backward that threw is over, although autograd's thread may hold its task for a moment longer: the ranks
// go on alike, by the plan they had.
TEST_F(OtherDeviceRanks, GoOnAfterABackwardThatFailed) {
  on_toy_ranks(2, [](World& world) {
    ShardOptions options = toy_layers();
    options.comm.timeout = std::chrono::milliseconds(5000);
    const auto net = std::make_shared<ToyGatedImpl>();
    auto model = fully_shard(world, net, options);
    const at::Tensor x = torch::randn({3, 6}).to(world.device());
    for (int round = 0; round < 40; ++round) {
      for (int s = 0; s < 2; ++s) model(x, true).backward();
      net->fails_back = true;
      EXPECT_THROW(model(x, true).backward(), std::runtime_error);
      net->fails_back = false;
      model.zero_grad();
    }
  });
}

bool waited(const std::vector<std::pair<c10::StreamId, c10::StreamId>>& waits, bool side_first) {
  return std::any_of(waits.begin(), waits.end(), [&](const auto& one) {
    return side_first ? one.first != 0 && one.second == 0 : one.first == 0 && one.second != 0;
  });
}

// Alone, weights are cast on a stream of their own. Where nobody has waited for that before the slot is free
// again, the one who frees it does.
TEST_F(OtherDeviceRanks, ASlotThatIsStillFilledIsNotGivenOn) {
  on_toy_ranks(1, [](World& world) {
    ShardOptions options{.wrap = by_type<torch::nn::LinearImpl>(), .precision = bf16(), .comm = kToyComm};
    const auto net = std::make_shared<ToyGatedImpl>();
    auto model = fully_shard(world, net, options);
    const at::Tensor x = torch::randn({3, 6}).to(world.device()).requires_grad_();
    for (int s = 0; s < 2; ++s) model(x, true).backward();
    net->stops = true;
    EXPECT_THROW(model(x, true), std::runtime_error);
    net->stops = false;
    toy_waits();
    model(x, true);
    const auto waits = toy_waits();
    require(!waits.empty() && waits.front().first != 0 && waits.front().second == 0,
            "the first thing the next call does is to wait for the second layer's cast");
  });
}

TEST_F(OtherDeviceRanks, ASecondStreamWaitsForTheGatherOfAUnitInUse) {
  on_toy_ranks(1, [](World& world) {
    auto model =
        fully_shard(world, std::make_shared<ToyGatedImpl>(), {.precision = bf16(), .comm = kToyComm});
    const at::NoGradGuard no_grad;
    model.run([&](ToyGatedImpl& net) {
      const auto held = use(net.first->weight);
      toy_waits();
      const c10::StreamGuard other(
          c10::impl::VirtualGuardImpl(world.device().type()).getStreamFromGlobalPool(world.device(), false));
      net.first->weight.sum();
    });
    require(waited(toy_waits(), /*side_first=*/false), "the second stream waits for the first");
  });
}

TEST_F(OtherDeviceRanks, LeaveNothingBehind) {
  on_toy_ranks(2, [](World& world) {
    {
      auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200), .comm = kToyComm});
      train_sharded(model, world, kOtherDeviceSteps, Optim::adamw);
      require(toy_bytes() > 0, "the model is on the device");
    }
    require(toy_bytes() == 0, std::to_string(toy_bytes()) + " bytes are left on the device");
  });
}

// A function may find the device's tensors itself: nothing among its inputs is on that device.
TEST_F(OtherDeviceRanks, DrawRandomNumbersOfTheirDeviceAgain) {
  on_toy_ranks(1, [](World& world) {
    at::Generator generator = at::globalContext().defaultGenerator(world.device());
    std::vector<at::Tensor> drawn;
    const auto fn = [&](const at::Tensor& x) {
      drawn.push_back(at::rand({8}, generator));
      return x * drawn.back();
    };
    recompute(fn, torch::ones({8}, torch::requires_grad())).sum().backward();
    require(drawn.size() == 2 && drawn[0].equal(drawn[1]), "recompute() drew others");
  });
}

}  // namespace
}  // namespace fsdp::testing
