// Promise: however a model is cut into units, and whichever of its parameters a step uses, it trains to the
// same bits.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

// A unit of which a forward uses what it is told: bit i of `ways` is branch i.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    stem = register_module("stem", torch::nn::Linear(6, 6));
    for (int i = 0; i < 3; ++i)
      ways.push_back(register_module("way" + std::to_string(i), torch::nn::Linear(6, 6)));
    never = register_parameter("never", torch::ones({5}));
    gains = register_parameter("gains", torch::ones({3}));
  }
  Tensor forward(Tensor x, int bits) {
    x = torch::tanh(stem(x));
    for (int i = 0; i < 3; ++i)
      if ((bits >> i) & 1) x = x + torch::tanh(ways[static_cast<size_t>(i)](x));
    return bits & 8 ? x * gains[0] : x;
  }
  torch::nn::Linear stem{nullptr};
  std::vector<torch::nn::Linear> ways;
  Tensor never, gains;
};
TORCH_MODULE(Branches);

struct BranchNetImpl : torch::nn::Module {
  BranchNetImpl() {
    first = register_module("first", Branches());
    second = register_module("second", Branches());
    head = register_module("head", torch::nn::Linear(6, 3));
  }
  Tensor forward(const Tensor& x, int bits, int more) { return head(second(first(x, bits), more)); }
  Branches first{nullptr}, second{nullptr};
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<BranchNetImpl> make_branches() { return std::make_shared<BranchNetImpl>(); }

std::vector<Variant> branch_variants() {
  ShardOptions no_shard = sharded_by(by_type<BranchesImpl>());
  no_shard.strategy = Strategy::no_shard;
  ShardOptions kept = sharded_by(by_type<BranchesImpl>());
  kept.strategy = Strategy::shard_grad_op;
  ShardOptions small = sharded_by(by_type<BranchesImpl>());
  small.replicate_below = 20;
  ShardOptions small_no_shard = small;
  small_no_shard.strategy = Strategy::no_shard;
  ShardOptions rows_of_one = small;
  rows_of_one.strategy = Strategy::hybrid_shard;
  rows_of_one.shard_size = 1;
  return {{"branches", sharded_by(by_type<BranchesImpl>())},
          {"whole", sharded_by(whole_model())},
          {"no_shard", no_shard},
          {"shard_grad_op", kept},
          {"replicated", small},
          {"no_shard and replicate_below", small_no_shard},
          {"rows of one rank and replicate_below", rows_of_one}};
}

// Trains with the ways that `bits` gives for each step and rank.
void expect_same_ways(const std::function<std::pair<int, int>(const Moment&)>& bits, int steps = 6) {
  expect_same(make_branches,
              [&](auto& model, const Moment& now) {
                const auto [first, second] = bits(now);
                const Tensor x =
                    now.randn({4, 6}).requires_grad_();  // so that backward reads every unit on every rank
                model.backward(loss_of(model(x, first, second)));
              },
              branch_variants(), {.steps = steps});
}

TEST(Running, AParameterThatNoRankUsedHasNoGradient) {
  expect_same_ways([](const Moment&) { return std::pair(1, 2); });
}

TEST(Running, AParameterThatOneRankUsedHasItsGradient) {
  expect_same_ways([](const Moment& now) { return std::pair(now.rank == 0 ? 1 : 0, now.rank == 1 ? 6 : 1); });
}

TEST(Running, AParameterThatIsUsedLaterHasItsGradientThen) {
  expect_same_ways([](const Moment& now) { return std::pair(now.step < 2 ? 0 : 15, now.step < 3 ? 15 : 2); });
}

TEST(Running, AParameterThatIsNoLongerUsedHasNoGradient) {
  expect_same_ways([](const Moment& now) { return std::pair(now.step < 2 ? 15 : 0, 15); });
}

TEST(Running, AParameterThatOneRankUsesLaterHasItsGradientThen) {
  expect_same_ways([](const Moment& now) { return std::pair(now.step >= 2 && now.rank == 0 ? 7 : 0, 7); });
}

TEST(Running, RanksThatTakeOtherWaysInEveryStep) {
  expect_same_ways(
      [](const Moment& now) { return std::pair((now.index() * 5) % 16, (now.index() * 7 + 3) % 16); }, 12);
}

// Which ranks have a unit's gradient, and when, must not show in what they plan.
TEST(Running, AUnitThatOneRankReadsWithoutGradientIsPlannedTheSame) {
  expect_same(make_net,
              [](auto& model, const Moment& now) {
                const Tensor y = model.run([&](NetImpl& net) {
                  Tensor h = net.blocks[0](net.in(now.randn({4, 6})));
                  const Tensor& weight = net.blocks[1]->down->weight;
                  h = now.rank == 1
                          ? h + torch::linear(torch::linear(h, weight.detach().t()), weight.detach())
                          : net.blocks[1](h);
                  return net.out(net.blocks[2](h));
                });
                model.backward(loss_of(y));
              },
              {{"blocks", sharded_by(by_type<BlockImpl>())}});
}

std::shared_ptr<NetImpl> make_frozen_net() {
  auto net = make_net();
  for (auto& param : net->blocks[0]->parameters()) param.set_requires_grad(false);
  net->blocks[1]->up->weight.set_requires_grad(false);
  net->in->bias.set_requires_grad(false);
  return net;
}

TEST(Running, FrozenPartsStayAndTheRestLearns) {
  expect_same(make_frozen_net, [](auto& model, const Moment& now) {
    const Tensor x = now.randn({4, 6}).requires_grad_(now.step % 2 == 0);
    model.backward(loss_of(model(x)));
  });
}

const auto train_net = [](auto& model, const Moment& now) {
  model.backward(loss_of(model(now.randn({4, 6}))));
  const torch::NoGradGuard no_grad;
  model.see(model(now.randn({2, 6}, 1)));
};

TEST(Running, AnyPolicyTrainsTheSame) {
  const auto first = [](const ModuleInfo& info) {
    return info.path == "block0" || info.type == "LinearImpl";
  };
  ShardOptions joined = sharded_by(by_size(1));
  joined.min_unit_bytes = 900;
  ShardOptions cut = sharded_by(whole_model());
  cut.max_unit_bytes = 600;
  expect_same(make_net, train_net,
              {{"automatic", sharded_by({})},
               {"by_type", sharded_by(by_type<BlockImpl, torch::nn::LinearImpl>())},
               {"by_type_name", sharded_by(by_type_name({"Block"}))},
               {"by_size", sharded_by(by_size(20))},
               {"whole_model", sharded_by(whole_model())},
               {"predicate", sharded_by(first)},
               {"min_unit_bytes", joined},
               {"max_unit_bytes", cut}});
}

TEST(Running, AnyNumberOfSlotsTrainsTheSame) {
  std::vector<Variant> variants;
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    for (const int limit : {1, 2, 3, 0}) {
      ShardOptions options = sharded_by(by_size(100));
      options.limit_all_gathers = limit;
      options.strategy = strategy;
      variants.push_back(
          {"strategy " + std::to_string(static_cast<int>(strategy)) + ", limit " + std::to_string(limit),
           options});
    }
  expect_same(make_net, train_net, variants);
}

TEST(Running, UnitsMayBeKeptOneByOne) {
  ShardOptions kept = sharded_by(by_type<BlockImpl>());
  kept.unit = [](const std::string& unit) {
    return UnitOptions{.reshard_after_forward = unit == "block1", .precision = {}};
  };
  ShardOptions passing = kept;
  passing.strategy = Strategy::shard_grad_op;
  passing.unit = [](const std::string& unit) {
    return UnitOptions{.reshard_after_forward = unit == "block1" ? std::optional(true) : std::nullopt,
                       .precision = {}};
  };
  expect_same(make_net, train_net, {{"all kept but one", kept}, {"one passing", passing}});
}

TEST(Running, IgnoredAndReplicatedParameters) {
  ShardOptions replicated = sharded_by(by_type<BlockImpl>());
  replicated.replicate_below = 20;
  expect_same(make_net, train_net, {{"replicated", replicated}});
  ShardOptions ignored = replicated;
  ignored.ignored = {"block1.norm", "out.bias"};
  expect_same(make_net, train_net, {{"ignored", ignored}},
              {.ignored = {"block1.norm.weight", "block1.norm.bias", "out.bias"}});
}

TEST(Running, BlocksMayBeShardedOneByOne) {
  for (const auto outer : {Strategy::full_shard, Strategy::no_shard})
    for (const int ranks : {1, 2, 3}) {
      const Outcome wanted = run_plain(make_net, train_net, ranks, {});
      run_ranks(ranks, [&](World& world) {
        auto net = make_seeded(make_net);
        const auto first = fully_shard(world, net->blocks[0]);
        const auto second = fully_shard(world, net->blocks[1], {.strategy = Strategy::shard_grad_op});
        ShardedTwin twin(world, fully_shard(world, net, {.wrap = whole_model(), .strategy = outer}));
        require_outcome(twin, train_net, wanted);
      });
    }
}

TEST(Running, HoldersSharedPointersAndAnyModules) {
  for (const int ranks : {1, 2}) {
    const Tensor x = torch::ones({4, 6});
    const Tensor wanted = make_seeded(make_net)->forward(x);
    run_ranks(ranks, [&](World& world) {
      auto by_holder = fully_shard(world, Net(make_seeded(make_net)));
      auto by_pointer = fully_shard(world, make_seeded(make_net));
      auto by_any = fully_shard(world, torch::nn::AnyModule(Net(make_seeded(make_net))));
      require(by_holder(x).equal(wanted), "a holder's result");
      require(by_pointer(x).equal(wanted), "a shared_ptr's result");
      require(by_any(x).equal(wanted), "an AnyModule's result");
      loss_of(by_any(x)).backward();
      require(by_any.parameters().front().grad().defined(), "an AnyModule trains");
    });
  }
}

TEST(Running, TwoModelsInOneLoop) {
  using Models = std::pair<std::shared_ptr<NetImpl>, std::shared_ptr<torch::nn::LinearImpl>>;
  const auto make = [] {
    const SeededHere seeded(7);
    auto net = make_net();
    return Models{net, std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 6))};
  };
  const auto losses = [](auto& maker, auto& judge, const Moment& now) {
    const Tensor fake = maker(now.randn({4, 6}));
    return std::pair(loss_of(judge(fake.detach()) - now.randn({4, 6}, 1)), loss_of(judge(fake)));
  };
  for (const int ranks : {1, 2}) {
    const auto [maker, judge] = make();
    PlainTrainer train_maker(*maker, ranks), train_judge(*judge, ranks);
    const auto by_maker = make_optimizer(Optim::decaying_adamw, train_maker.parameters());
    const auto by_judge = make_optimizer(Optim::decaying_adamw, train_judge.parameters());
    const auto losses_of = [&, &maker = maker, &judge = judge](const Moment& now) {
      maker->zero_grad();
      judge->zero_grad();
      const auto make_it = [&](const Tensor& x) { return maker->forward(x); };
      const auto judge_it = [&](const Tensor& x) { return judge->forward(x); };
      return losses(make_it, judge_it, now);
    };
    for (int s = 0; s < 5; ++s) {
      train_judge.backward([&](int r) { return losses_of({s, r, ranks}).first; });
      train_judge.step(*by_judge);
      train_maker.backward([&](int r) { return losses_of({s, r, ranks}).second; });
      train_maker.step(*by_maker);
    }
    run_ranks(ranks, [&](World& world) {
      const Models mine = make();
      auto my_maker = fully_shard(world, mine.first, sharded_by(by_type<BlockImpl>()));
      auto my_judge = fully_shard(world, mine.second, sharded_by(whole_model()));
      const auto step_maker = make_optimizer(Optim::decaying_adamw, my_maker.parameters());
      const auto step_judge = make_optimizer(Optim::decaying_adamw, my_judge.parameters());
      for (int s = 0; s < 5; ++s)
        for (const bool judging : {true, false}) {
          my_maker.zero_grad();
          my_judge.zero_grad();
          const auto both = losses(my_maker, my_judge, {s, world.rank(), ranks});
          (judging ? both.first : both.second).backward();
          (judging ? step_judge : step_maker)->step();
        }
      require_same(state_of(my_maker), train_maker.state());
      require_same(state_of(my_judge), train_judge.state());
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
