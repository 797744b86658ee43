// Promise: every unit says which phase of a step it is in, and whoever listens hears of every change.
#include <gmock/gmock.h>

#include <map>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using Phases = std::vector<UnitPhase>;
using ::testing::HasSubstr;

constexpr UnitPhase kIdle = UnitPhase::idle;
const Phases kForward{UnitPhase::forward, kIdle};
const Phases kBackward{UnitPhase::backward_pre, UnitPhase::backward_post, kIdle};
const Phases kFrozenBackward{UnitPhase::backward_pre, kIdle};

Phases then(Phases first, const Phases& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The phases each unit went to, and whether every change began where the one before had ended.
class Heard {
 public:
  void operator()(const UnitTransition& one) {
    const auto [place, fresh] = last_.emplace(one.unit, kIdle);
    unbroken = unbroken && place->second == one.from && one.from != one.to;
    place->second = one.to;
    phases[one.unit].push_back(one.to);
  }

  std::map<std::string, Phases> phases;
  bool unbroken = true;

 private:
  std::map<std::string, UnitPhase> last_;
};

void require_phases(const Heard& heard, const std::string& unit, const Phases& wanted) {
  std::string text = unit + ":";
  const auto found = heard.phases.find(unit);
  const Phases got = found == heard.phases.end() ? Phases{} : found->second;
  for (const UnitPhase phase : got) text += std::string(" ") + to_string(phase);
  require(got == wanted, text);
  require(heard.unbroken, "a change begins where the one before ended");
}

template <class Body>
void unit_phases_each_size(Body body) {
  for (const int ranks : {1, 2, 3}) run_ranks(ranks, body);
}

at::Tensor input(const World& world, int64_t width = 6) {
  return torch::full({2, width}, 1.0 + world.rank());
}

ShardOptions by_block(Strategy strategy = Strategy::full_shard) {
  return {.wrap = by_type<BlockImpl>(), .strategy = strategy};
}

TEST(UnitPhases, OfAStepWithAndWithoutAPlan) {
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    unit_phases_each_size([&](World& world) {
      auto model = fully_shard(world, make_net(), by_block(strategy));
      for (int step = 0; step < 4; ++step) {
        auto heard = std::make_shared<Heard>();
        model.on_transition([heard](const UnitTransition& one) { (*heard)(one); });
        loss_of(model(input(world))).backward();
        for (const char* block : {"block0", "block1", "block2"})
          require_phases(*heard, block, then(kForward, kBackward));
        // The layers before and after the blocks.
        require_phases(*heard, "root", then(then(kForward, kForward), kBackward));
        model.zero_grad();
      }
    });
}

TEST(UnitPhases, OfAnEvaluationAndWholeParameters) {
  unit_phases_each_size([](World& world) {
    auto model = fully_shard(world, make_net(), by_block());
    auto heard = std::make_shared<Heard>();
    model.on_transition([heard](const UnitTransition& one) { (*heard)(one); });
    {
      const at::NoGradGuard no_grad;
      model(input(world));
    }
    require_phases(*heard, "block1", kForward);
    heard->phases.clear();
    {
      const auto part = model.full_params(FullParamsOptions{.module = "block1"});
      require(model.parameter_info("block1.up.weight").phase == UnitPhase::summon, "one block");
      require(model.parameter_info("block0.up.weight").phase == kIdle, "another is not");
      const auto all = model.full_params();
      for (const UnitPhase phase : model.unit_phases()) require(phase == UnitPhase::summon, "all");
    }
    for (const UnitPhase phase : model.unit_phases()) require(phase == kIdle, "none");
    require_phases(*heard, "block1", {UnitPhase::summon, kIdle});
    heard->phases.clear();
    model.on_transition({});
    loss_of(model(input(world))).backward();
    require(heard->phases.empty(), "nobody listens");
  });
}

// A layer that is never used, one that is frozen, and what a caller sees between them.
struct UnevenImpl : torch::nn::Module {
  UnevenImpl() {
    first = register_module("first", torch::nn::Linear(8, 8));
    first->register_parameter("unused", torch::ones({5}));
    frozen = register_module("frozen", torch::nn::Linear(8, 8));
    for (auto& param : frozen->parameters()) param.requires_grad_(false);
    last = register_module("last", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = frozen(first(x));
    if (between) between();
    return last(h);
  }
  torch::nn::Linear first{nullptr}, frozen{nullptr}, last{nullptr};
  std::function<void()> between;
};

TEST(UnitPhases, OfUnusedAndFrozenParameters) {
  unit_phases_each_size([](World& world) {
    const auto net = std::make_shared<UnevenImpl>();
    auto model = fully_shard(world, net, {.wrap = by_type<torch::nn::LinearImpl>()});
    const auto phase = [&](const char* name) { return model.parameter_info(name).phase; };
    net->between = [&] {
      require(phase("frozen.weight") == UnitPhase::forward, "the unit that was read last");
      require(phase("first.weight") == kIdle && phase("last.weight") == kIdle, "not the others");
    };
    for (int step = 0; step < 3; ++step) {
      auto heard = std::make_shared<Heard>();
      model.on_transition([heard](const UnitTransition& one) { (*heard)(one); });
      const at::Tensor loss = loss_of(model(input(world, 8)));
      require(phase("last.weight") == kIdle, "forward is over");
      loss.backward();
      require_phases(*heard, "first", then(kForward, kBackward));
      require_phases(*heard, "frozen", then(kForward, kFrozenBackward));
      require_phases(*heard, "last", then(kForward, kBackward));
      model.zero_grad();
    }
  });
}

TEST(UnitPhases, ACallThatThrowsLeavesAllIdle) {
  run_ranks(1, [](World& world) {
    const auto net = std::make_shared<UnevenImpl>();
    auto model = fully_shard(world, net, {.wrap = by_type<torch::nn::LinearImpl>()});
    net->between = [] { throw std::runtime_error("it stops"); };
    EXPECT_THROW(model(input(world, 8)), std::runtime_error);
    for (const UnitPhase phase : model.unit_phases()) require(phase == kIdle, "idle");
  });
}

TEST(UnitPhases, AreLoggedWhereTheEnvironmentSaysSo) {
  const ScopedEnv on("FSDP_LOG_UNITS", "1");
  ::testing::internal::CaptureStderr();
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, make_net(), by_block());
    loss_of(model(input(world))).backward();
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("rank 0: unit 'block1': idle -> forward"));
  EXPECT_THAT(text, HasSubstr("rank 0: unit 'block1': backward_pre -> backward_post"));
}

}  // namespace
}  // namespace fsdp::testing
