// Promise: with reshard_group, a unit stays in parts among a few ranks from forward to backward, and backward
// gathers it there; the numbers are the same.
#include <gtest/gtest.h>

#include "runtime/engine.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kSteps = 6;

struct GroupCase {
  std::string learner;
  int ranks, group;
  Precision precision = {};
};

void PrintTo(const GroupCase& one, std::ostream* out) {
  *out << one.learner << " of " << one.ranks << " ranks in groups of " << one.group;
}

class ReshardGroup : public ::testing::TestWithParam<GroupCase> {};

TEST_P(ReshardGroup, BitsAreThoseOfFullShard) {
  const GroupCase& one = GetParam();
  run_ranks(one.ranks, [&](World& world) {
    const auto train = [&](int group, Strategy strategy) {
      auto model = fully_shard(world, make_learner(one.learner),
                               {.wrap = by_size(200),
                                .strategy = strategy,
                                .precision = one.precision,
                                .reshard_group = group,
                                .shard_size = strategy == Strategy::hybrid_shard ? 4 : 0});
      train_sharded(model, world, kSteps, Optim::fused_adamw);
      return state_of(model);
    };
    const State wanted = train(0, Strategy::full_shard);
    require_same(train(one.group, Strategy::full_shard), wanted);
    if (one.ranks == 8) require_same(train(one.group, Strategy::hybrid_shard), wanted, "hybrid: ");
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReshardGroup,
                         ::testing::Values(GroupCase{"gpt2", 4, 2}, GroupCase{"llama", 4, 2, bf16()},
                                           GroupCase{"lstm", 4, 2}, GroupCase{"convnet", 4, 1},
                                           GroupCase{"mlp", 4, 4}, GroupCase{"frozen", 4, 2},
                                           GroupCase{"gpt2", 8, 2}));

// The bytes that gathers in `group` have moved so far.
int64_t gathered_bytes(const Comm& group) {
  int64_t bytes = 0;
  for (const OpStats& one : group.stats())
    if (one.op == "all_gather") bytes += one.bytes;
  return bytes;
}

TEST(ReshardGroups, MemoryIsAPartFromForwardToBackward) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_gpt2(6, 32), {.reshard_group = 2});
    const int64_t whole = 4 * model.num_parameters();
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      auto loss = model(model.module().batch(world.rank()));
      const auto kept = static_cast<double>(model.memory_stats().overflow_bytes);
      // Not kept: what is still gathered, and what backward does not read.
      require(kept > 0.3 * static_cast<double>(whole) && kept < 0.6 * static_cast<double>(whole),
              "kept " + std::to_string(kept) + " of " + std::to_string(whole));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      require(model.memory_stats().overflow_bytes == 0, "kept after backward");
    }
    at::NoGradGuard no_grad;
    model(model.module().batch(0));
    require(model.memory_stats().overflow_bytes == 0, "kept in an evaluation");
  });
}

TEST(ReshardGroups, WhatBackwardDoesNotReadIsNotKept) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_learner("llama"), {.wrap = by_size(200), .reshard_group = 2});
    std::vector<std::string> kept;
    for (int step = 0; step < 3; ++step) {
      auto loss = model(model.module().batch(world.rank()));
      kept.clear();
      for (const auto& unit : detail::current(model.engine()).units)
        if (unit->kept_bytes() > 0) kept.push_back(unit->name);
      loss.backward();
      model.zero_grad();
    }
    require(kept.size() > 1, "units kept: " + std::to_string(kept.size()));
    for (const std::string& unit : kept)
      require(unit.find("embed_tokens") == std::string::npos, unit + " is kept");
  });
}

TEST(ReshardGroups, BackwardGathersInTheGroup) {
  run_ranks(4, [](World& world) {
    // What a backward gathers in the row, and in groups of two.
    const auto in_backward = [&](int group) {
      auto model = fully_shard(world, make_gpt2(6, 32), {.reshard_group = group});
      detail::Mesh& mesh = detail::current(model.engine()).mesh;
      Comm part = mesh.part(2);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      std::pair<int64_t, int64_t> bytes;
      for (int step = 0; step < 3; ++step) {
        auto loss = model(model.module().batch(world.rank()));
        const std::pair before{gathered_bytes(mesh.row), gathered_bytes(part)};
        loss.backward();
        bytes = {gathered_bytes(mesh.row) - before.first, gathered_bytes(part) - before.second};
        optimizer.step();
        optimizer.zero_grad();
      }
      return bytes;
    };
    const auto row = in_backward(0), group = in_backward(2), kept = in_backward(1);
    require(row.first > 0 && row.second == 0, "without a group");
    require(group.first == 0 && group.second == row.first, "in a group");
    require(kept.first == 0 && kept.second == 0, "kept");
  });
}

TEST(ReshardGroups, SomeUnitsOnly) {
  run_ranks(4, [](World& world) {
    const State wanted = [&] {
      auto model = fully_shard(world, make_learner("gpt2"), {});
      train_sharded(model, world, kSteps, Optim::sgd);
      return state_of(model);
    }();
    ShardOptions options;
    options.unit = [](const std::string& unit) {
      return unit.find(".h.0") != std::string::npos ? UnitOptions{.reshard_group = 2} : UnitOptions{};
    };
    auto model = fully_shard(world, make_learner("gpt2"), options);
    train_sharded(model, world, kSteps, Optim::sgd);
    require_same(state_of(model), wanted);
  });
}

// Parameters written between two forwards of one backward: the second forward's values are what is kept.
TEST(ReshardGroups, SeveralForwardsAndWhatComesBetween) {
  run_ranks(4, [](World& world) {
    const auto train = [&](int group) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200), .reshard_group = group});
      torch::optim::SGD optimizer(model.parameters(), 0.05);
      for (int step = 0; step < 4; ++step) {
        auto loss = model(model.module().batch(4 * step + world.rank()));
        at::NoGradGuard no_grad;
        if (step == 1)
          for (at::Tensor& slice : model.parameters()) slice.mul_(1.01);
        if (step == 2) model(model.module().batch(0));
        at::AutoGradMode with_grad(true);
        if (step == 1) loss = torch::zeros({});
        loss = loss + model(model.module().batch(99 + world.rank()));
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return state_of(model);
    };
    require_same(train(2), train(0));
  });
}

// Four layers and a small head, to be run in unusual ways.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(int rank) : rank(rank) {
    const SeededHere seeded(3);
    for (const char* name : {"a", "b", "c", "d"})
      layers.push_back(register_module(name, torch::nn::Linear(16, 16)));
    head = register_module("head", torch::nn::Linear(16, 1));
  }
  at::Tensor layer(size_t i, const at::Tensor& x) { return torch::tanh(layers[i]->forward(x)); }
  at::Tensor forward(at::Tensor x);

  int rank;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
  bool recompute = false, fail = false, skip = false, head_on_rank_0 = false;
};
TORCH_MODULE(Layers);

// Layers 1 and 2 without saving anything but their input.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor run(LayersImpl& net, const at::Tensor& x) { return net.layer(2, net.layer(1, x)); }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t net) {
    context->save_for_backward({x});
    context->saved_data["net"] = net;
    return run(*reinterpret_cast<LayersImpl*>(net), x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradient) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    auto y = run(*reinterpret_cast<LayersImpl*>(context->saved_data["net"].toInt()), x);
    torch::autograd::backward({y}, {gradient[0]});
    return {x.grad(), at::Tensor()};
  }
};

at::Tensor LayersImpl::forward(at::Tensor x) {
  if (head_on_rank_0) return rank == 0 ? head(x).sum() : x.sum();
  x = layer(0, x);
  if (recompute) {
    x = Recomputed::apply(x, reinterpret_cast<int64_t>(this));
  } else {
    x = layer(1, x);
    if (fail) throw std::runtime_error("on purpose");
    if (!skip) x = layer(2, x);
  }
  return head(layer(3, x)).pow(2).sum();
}

// What a step does up to its gradients.
using Layered = ShardedTwin<LayersImpl>;
using Program = std::function<void(Layered& model, const Moment& now)>;

at::Tensor layered_loss(Layered& model, int64_t number = 0) {
  return model(model.now().randn({5, 16}, number));
}

State train_by(const Program& program, const World& world, int group, int64_t replicate_below) {
  const ShardOptions options{
      .wrap = by_size(200), .replicate_below = replicate_below, .reshard_group = group};
  Layered model(world, fully_shard(world, Layers(world.rank()), options));
  while (model.step < kSteps) {
    model.train(program);
    require(model.memory_stats().overflow_bytes == 0, "kept between steps");
  }
  return state_of(model);
}

// The model's forward fails half way.
void fail(Layered& model) {
  model.module().fail = true;
  EXPECT_THROW(layered_loss(model, 7), std::runtime_error);
  model.module().fail = false;
}

const std::map<std::string, Program>& programs() {
  static const std::map<std::string, Program> all{
      {"NoSync",
       [](Layered& model, const Moment&) {
         {
           const auto kept_back = model.no_sync();
           layered_loss(model, 0).backward();
         }
         layered_loss(model, 1).backward();
       }},
      {"BackwardTwice",
       [](Layered& model, const Moment&) {
         auto loss = layered_loss(model);
         loss.backward({}, /*retain_graph=*/true);
         loss.backward();
       }},
      {"TwoForwards",
       [](Layered& model, const Moment&) {
         auto one = layered_loss(model, 0), two = layered_loss(model, 1);
         one.backward();
         two.backward();
       }},
      {"FailedForwards",
       [](Layered& model, const Moment& now) {
         if (now.step % 2 == 1) fail(model);
         auto loss = layered_loss(model);
         if (now.step % 3 == 1) fail(model);
         loss.backward();
       }},
      {"FullParamsBetween",
       [](Layered& model, const Moment& now) {
         auto loss = layered_loss(model);
         if (now.step % 2 == 1) const auto whole = model.full_params();
         loss.backward();
       }},
      {"Recomputed",
       [](Layered& model, const Moment&) {
         model.module().recompute = true;
         layered_loss(model).backward();
       }},
      {"WrittenBeforeRecomputed",
       [](Layered& model, const Moment&) {
         model.module().recompute = true;
         auto loss = layered_loss(model);
         {
           const at::NoGradGuard no_grad;
           for (const auto& one : model.named_parameters())
             if (one.key() == "b.weight" || one.key() == "c.weight") one.value().mul_(1.1);
         }
         loss.backward();
       }},
      {"Frozen",
       [](Layered& model, const Moment& now) {
         for (auto& one : model.module().layers[1]->parameters()) one.set_requires_grad(now.step % 3 != 1);
         layered_loss(model).backward();
       }},
      {"OffThePlan",
       [](Layered& model, const Moment& now) {
         model.module().skip = now.step % 2 == 1;
         layered_loss(model).backward();
       }},
      {"OneRankReadsWhatIsWhole",
       [](Layered& model, const Moment&) {
         auto loss = layered_loss(model);
         {
           const at::NoGradGuard no_grad;
           model.module().head_on_rank_0 = true;
           layered_loss(model, 5);
           model.module().head_on_rank_0 = false;
         }
         loss.backward();
       }},
      {"AStepBetweenForwards",
       [](Layered& model, const Moment&) {
         layered_loss(model, 0).backward();
         auto dropped = layered_loss(model, 1);
         model.optimizer->step();
         layered_loss(model, 2).backward();
       }},
  };
  return all;
}

class ReshardGroupProgram : public ::testing::TestWithParam<std::string> {};

TEST_P(ReshardGroupProgram, IsTheSameAsWithoutAGroup) {
  run_ranks(4, [&](World& world) {
    const Program& program = programs().at(GetParam());
    for (const int64_t whole : {0, 40})
      require_same(train_by(program, world, 2, whole), train_by(program, world, 0, whole));
  });
}

std::vector<std::string> program_names() {
  std::vector<std::string> names;
  for (const auto& [name, program] : programs()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ReshardGroupProgram, ::testing::ValuesIn(program_names()),
                         [](const auto& info) { return info.param; });

struct AroundImpl : torch::nn::Module {
  AroundImpl(const torch::nn::Linear& before_, const Layers& net_)
      : before(register_module("before", before_)), net(register_module("net", net_)) {}
  at::Tensor forward(const at::Tensor& x) { return net(before(x)); }
  torch::nn::Linear before;
  Layers net;
};
TORCH_MODULE(Around);

TEST(ReshardGroups, ABlockShardedBeforeItsModel) {
  run_ranks(4, [](World& world) {
    const ShardOptions options{.wrap = by_size(200), .reshard_group = 2};
    Layers net(world.rank());
    torch::nn::Linear before(16, 16);
    auto block = fully_shard(world, net, options);
    block(torch::ones({2, 16}));  // and no backward
    auto model = fully_shard(world, Around(before, net), options);
    for (int step = 0; step < 3; ++step) {
      model(torch::ones({2, 16}) * world.rank()).backward();
      require(model.memory_stats().overflow_bytes == 0, "kept after backward");
    }
  });
}

TEST(ReshardGroups, AloneTheyAreIgnored) {
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.reshard_group = 2});
    train_sharded(model, world, 2, Optim::sgd);
  });
}

TEST(ReshardGroups, GroupsThatDoNotFitAreRefused) {
  run_ranks(4, [](World& world) {
    const auto said = [&](const ShardOptions& options) {
      return refusal([&] { const auto model = fully_shard(world, make_learner("mlp"), options); });
    };
    const auto odd = said({.reshard_group = 3});
    require(odd.find("reshard_group 3 does not divide the 4 ranks") != std::string::npos, odd);
    const auto whole = said({.strategy = Strategy::no_shard, .reshard_group = 2});
    require(whole.find("with Strategy::no_shard") != std::string::npos, whole);
    ShardOptions both;
    both.unit = [](const std::string&) {
      return UnitOptions{.reshard_after_forward = false, .reshard_group = 2};
    };
    const auto twice = said(both);
    require(twice.find("set one of them") != std::string::npos, twice);
  });
}

}  // namespace
}  // namespace fsdp::testing
