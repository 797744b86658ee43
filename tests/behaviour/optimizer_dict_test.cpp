// Promise: an optimizer's state dict holds all of its state, and loads all of it or nothing.
#include <gtest/gtest.h>

#include "behaviour/layers_net.h"

namespace fsdp::testing {
namespace {

constexpr StateDictType kEveryType[] = {StateDictType::full, StateDictType::local, StateDictType::sharded};

struct TrainedLayers {
  explicit TrainedLayers(const World& world, bool used = true)
      : model(shard_layers(world)), adam(all_params(model), AdamWOptions(1e-2)) {
    for (int64_t step = 0; used && step < 2; ++step) train_layers(model, adam, step);
  }
  Sharded<LayersNet> model;
  fsdp::AdamW adam;
};

StateDict without(const StateDict& state, const std::string& name) {
  StateDict rest("moment");
  for (const auto& item : state)
    if (item.key() != name) rest.insert(item.key(), item.value());
  return rest;
}

// What load_optimizer_state_dict() says; the optimizer is as before.
std::string refused(TrainedLayers& trained, const StateDict& state) {
  const auto params = all_params(trained.model);
  std::vector<at::Tensor> before;
  for (const at::Tensor& param : params)
    if (param.numel() > 0) before.push_back(adam_state(trained.adam, param).exp_avg().clone());
  const std::string words =
      checkpoint_error([&] { load_optimizer_state_dict(trained.model, trained.adam, state); });
  size_t i = 0;
  for (const at::Tensor& param : params)
    if (param.numel() > 0)
      require(adam_state(trained.adam, param).exp_avg().equal(before[i++]), "nothing was loaded");
  return words;
}

TEST(OptimizerDict, EveryTypeHoldsIgnoredParametersToo) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      TrainedLayers trained(world);
      for (const StateDictType type : kEveryType)
        for (const bool used : {false, true}) {
          const StateDict state = optimizer_state_dict(trained.model, trained.adam, {.type = type});
          TrainedLayers other(world, used);
          load_optimizer_state_dict(other.model, other.adam, state);
          load_state_dict(other.model, state_dict(trained.model));
          require_same(all_params(other.model), other.adam, all_params(trained.model), trained.adam);
        }
      const StateDict whole = optimizer_state_dict(trained.model, trained.adam);
      require(whole["state.image.exp_avg"].boxes.at(0).tensor.equal(
                  adam_state(trained.adam, trained.model.module().image).exp_avg()),
              "an ignored one");
      require(whole["state.first.weight.exp_avg"].shape == std::vector<int64_t>{7, 5}, "a sharded one");
    });
}

TEST(OptimizerDict, RefusesADictOfRank0Alone) {
  run_ranks(2, [](World& world) {
    TrainedLayers trained(world);
    const StateDict state = optimizer_state_dict(trained.model, trained.adam, {.rank0_only = true});
    require(state.is_empty() == (world.rank() != 0), "rank 0 alone has it");
    require_words(refused(trained, state), "'state.first.weight.step' is missing");
  });
}

TEST(OptimizerDict, ListsMissingUnexpectedAndIncompleteNames) {
  for (const StateDictType type : kEveryType)
    run_ranks(2, [type](World& world) {
      TrainedLayers trained(world);
      const std::string flat = type == StateDictType::local ? "flat." : "";
      StateDict state = optimizer_state_dict(trained.model, trained.adam, {.type = type});
      require_words(refused(trained, without(state, flat + "state.first.weight.exp_avg_sq")),
                    "'state.first.weight.exp_avg_sq' is missing");
      StateDict none = without(state, "state.image.step");
      for (const char* key : {"exp_avg", "exp_avg_sq"})
        none = without(none, std::string("state.image.") + key);
      require_words(refused(trained, none), "'state.image.step' is missing");
      StateDict more = without(state, "");
      more.insert("state.third.weight.exp_avg", state["state.image.exp_avg"]);
      require_words(refused(trained, more), "'state.third.weight.exp_avg' is unexpected");
      more = without(state, "");
      more.insert("state.image.typo", state["state.image.exp_avg"]);
      require_words(refused(trained, more), "'state.image.typo' is unknown to AdamW");
      load_optimizer_state_dict(trained.model, trained.adam, state);
    });
}

TEST(OptimizerDict, RefusesAnotherDtypeAndNoSteps) {
  run_ranks(2, [](World& world) {
    TrainedLayers trained(world);
    StateDict state = optimizer_state_dict(trained.model, trained.adam);
    at::Tensor& moment = state["state.first.weight.exp_avg"].boxes[0].tensor;
    moment = moment.to(at::kBFloat16);
    require_words(refused(trained, state),
                  "'state.first.weight.exp_avg' has another dtype: BFloat16, expected Float");
    moment = moment.to(at::kFloat);
    at::Tensor& steps = state["state.first.weight.step"].boxes[0].tensor;
    steps = torch::tensor(1.5, at::kDouble);
    require_words(refused(trained, state), "which is no number of steps");
    steps = torch::tensor({1.0, 2.0}, at::kDouble);
    require_words(refused(trained, state), "'state.first.weight.step'");
  });
}

int64_t gathers(const ShardedModel& model) {
  int64_t count = 0;
  for (const OpStats& one : model.comm_stats()) count += one.op == "all_gather" ? one.count : 0;
  return count;
}

TEST(OptimizerDict, GathersEachMomentOfAUnitOnce) {
  run_ranks(2, [](World& world) {
    auto layers = torch::nn::Sequential();
    for (int i = 0; i < 10; ++i) layers->push_back(torch::nn::Linear(3, 3));
    auto model = fully_shard(world, layers, {.wrap = whole_model()});
    fsdp::AdamW adam(model.parameters(), AdamWOptions(1e-2));
    model(torch::ones({1, 3})).sum().backward();
    adam.step();
    const int64_t before = gathers(model);
    require(optimizer_state_dict(model, adam).size() == 60, "two moments and a number of steps of each");
    require(gathers(model) - before == 2, std::to_string(gathers(model) - before) + " gathers");
  });
}

// Parameters that never had a gradient have no state: that is not the same as a name that is missing.
TEST(OptimizerDict, ParametersWithoutStateStayWithout) {
  run_ranks(2, [](World& world) {
    auto model = shard_layers(world);
    fsdp::AdamW adam(all_params(model), AdamWOptions(1e-2));
    model(layers_batch(0)).square().mean().backward();
    model.module().image.mutable_grad().reset();
    adam.step();
    for (const StateDictType type : kEveryType) {
      const StateDict state = optimizer_state_dict(model, adam, {.type = type});
      TrainedLayers other(world);
      load_optimizer_state_dict(other.model, other.adam, state);
      require(other.adam.state().count(other.model.module().image.unsafeGetTensorImpl()) == 0, "no state");
      require(adam_state(other.adam, other.model.module().turned).step() == 1, "the others have theirs");
    }
  });
}

// LibTorch's optimizers keep states of slices without elements, too.
TEST(OptimizerDict, StockOptimizersGoOn) {
  run_ranks(3, [](World& world) {
    auto model = shard_layers(world);
    torch::optim::AdamW adam(model.parameters(), AdamWOptions(1e-2));
    train_layers(model, adam, 0);
    for (const StateDictType type : kEveryType) {
      auto other = shard_layers(world);
      torch::optim::AdamW next(other.parameters(), AdamWOptions(1e-2));
      load_optimizer_state_dict(other, next, optimizer_state_dict(model, adam, {.type = type}));
      load_state_dict(other, state_dict(model));
      train_layers(other, next, 1);
      require(adam_state(next, other.parameters()[0]).step() == 2, "steps");
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
