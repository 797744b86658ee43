// Promise: with reshard_group, a unit stays in parts among a few ranks from forward to backward, and backward
// gathers it there; the numbers are the same.
#include <gtest/gtest.h>

#include "runtime/engine.h"
#include "support/ranks.h"
#include "support/training.h"

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
    std::string different = difference(train(one.group, Strategy::full_shard), wanted);
    require(different.empty(), different);
    if (one.ranks != 8) return;
    different = difference(train(one.group, Strategy::hybrid_shard), wanted);
    require(different.empty(), "hybrid: " + different);
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
        if (unit->saved_bytes() > 0) kept.push_back(unit->name());
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
      Comm part = mesh.reshard_group(2);
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
    const std::string different = difference(state_of(model), wanted);
    require(different.empty(), different);
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
    const std::string different = difference(train(2), train(0));
    require(different.empty(), different);
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

using Model = Sharded<LayersImpl>;
// A step of `model` up to its gradients; call(k) is its forward on batch k of this step.
using Scene = std::function<void(Model& model, int step, const std::function<at::Tensor(int)>& call,
                                 torch::optim::Optimizer& optimizer)>;

State train_scene(World& world, int group, const Scene& scene, int64_t replicate_below) {
  auto model =
      fully_shard(world, Layers(world.rank()),
                  {.wrap = by_size(200), .replicate_below = replicate_below, .reshard_group = group});
  fsdp::AdamW optimizer(model.parameters(), AdamWOptions(1e-2));
  for (int step = 0; step < 6; ++step) {
    const auto draw = [&](int k) {
      const SeededHere seeded(static_cast<uint64_t>(100 * step + 10 * k + world.rank()));
      return torch::randn({5, 16});
    };
    const auto call = [&](int k) { return model(draw(k)); };
    scene(model, step, call, optimizer);
    optimizer.step();
    optimizer.zero_grad();
    require(model.memory_stats().overflow_bytes == 0, "kept between steps");
  }
  State state;
  const auto whole = model.full_params();
  for (const auto& parameter : model.module().named_parameters())
    state[parameter.key()] = parameter.value().detach().clone();
  return state;
}

// The model's forward fails half way.
void fail(Model& model, const std::function<at::Tensor(int)>& call) {
  model.module().fail = true;
  EXPECT_THROW(call(7), std::runtime_error);
  model.module().fail = false;
}

const std::map<std::string, Scene>& scenes() {
  static const std::map<std::string, Scene> all{
      {"NoSync",
       [](auto& model, int, auto& call, auto&) {
         {
           const auto kept_back = model.no_sync();
           call(0).backward();
         }
         call(1).backward();
       }},
      {"BackwardTwice",
       [](auto&, int, auto& call, auto&) {
         auto loss = call(0);
         loss.backward({}, /*retain_graph=*/true);
         loss.backward();
       }},
      {"TwoForwards",
       [](auto&, int, auto& call, auto&) {
         auto one = call(0), two = call(1);
         one.backward();
         two.backward();
       }},
      {"FailedForwards",
       [](auto& model, int step, auto& call, auto&) {
         if (step % 2 == 1) fail(model, call);
         auto loss = call(0);
         if (step % 3 == 1) fail(model, call);
         loss.backward();
       }},
      {"FullParamsBetween",
       [](auto& model, int step, auto& call, auto&) {
         auto loss = call(0);
         if (step % 2 == 1) const auto whole = model.full_params();
         loss.backward();
       }},
      {"Recomputed",
       [](auto& model, int, auto& call, auto&) {
         model.module().recompute = true;
         call(0).backward();
       }},
      {"WrittenBeforeRecomputed",
       [](auto& model, int, auto& call, auto&) {
         model.module().recompute = true;
         auto loss = call(0);
         {
           const at::NoGradGuard no_grad;
           for (const auto& one : model.named_parameters())
             if (one.key() == "b.weight" || one.key() == "c.weight") one.value().mul_(1.1);
         }
         loss.backward();
       }},
      {"Frozen",
       [](auto& model, int step, auto& call, auto&) {
         for (auto& one : model.module().layers[1]->parameters()) one.set_requires_grad(step % 3 != 1);
         call(0).backward();
       }},
      {"OffThePlan",
       [](auto& model, int step, auto& call, auto&) {
         model.module().skip = step % 2 == 1;
         call(0).backward();
       }},
      {"OneRankReadsWhatIsWhole",
       [](auto& model, int, auto& call, auto&) {
         auto loss = call(0);
         {
           const at::NoGradGuard no_grad;
           model.module().head_on_rank_0 = true;
           call(5);
           model.module().head_on_rank_0 = false;
         }
         loss.backward();
       }},
      {"AStepBetweenForwards",
       [](auto&, int, auto& call, auto& optimizer) {
         call(0).backward();
         auto dropped = call(1);
         optimizer.step();
         call(2).backward();
       }},
  };
  return all;
}

class ReshardGroupScene : public ::testing::TestWithParam<std::string> {};

TEST_P(ReshardGroupScene, IsTheSameAsWithoutAGroup) {
  run_ranks(4, [&](World& world) {
    const Scene& scene = scenes().at(GetParam());
    for (const int64_t whole : {0, 40}) {
      const std::string different =
          difference(train_scene(world, 2, scene, whole), train_scene(world, 0, scene, whole));
      require(different.empty(), different);
    }
  });
}

std::vector<std::string> scene_names() {
  std::vector<std::string> names;
  for (const auto& [name, scene] : scenes()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ReshardGroupScene, ::testing::ValuesIn(scene_names()),
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
