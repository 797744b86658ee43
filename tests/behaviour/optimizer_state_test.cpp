// Promise: an optimizer gets back its own state: moments and steps of each parameter, options of each group,
// in the dtype it makes them in; or the load is refused in words and changes nothing.
#include <gtest/gtest.h>

#include "behaviour/layers_net.h"
#include "support/temp_folder.h"

namespace fsdp::testing {
namespace {

using torch::optim::OptimizerParamGroup;

OptimizerParamGroup group_of(std::vector<at::Tensor> params, double lr, double decay) {
  return {std::move(params), std::make_unique<AdamWOptions>(AdamWOptions(lr).weight_decay(decay))};
}

// first.weight, first.bias, second.weight, second.bias
std::vector<at::Tensor> weights(const Sharded<LayersNet>& model) {
  return {model.parameters()[0], model.parameters()[2]};
}
std::vector<at::Tensor> biases(const Sharded<LayersNet>& model) {
  return {model.parameters()[1], model.parameters()[3]};
}

const AdamWOptions& options_at(fsdp::AdamW& adam, size_t group) {
  return static_cast<const AdamWOptions&>(adam.param_groups()[group].options());
}

TEST(OptimizerState, GroupsAreMatchedByTheirParameters) {
  const TempFolder folder;
  for (const int ranks : {1, 3})
    run_ranks(ranks, [&](World& world) {
      const std::string run_folder = folder / std::to_string(ranks);
      auto model = shard_layers(world);
      fsdp::AdamW adam({group_of(weights(model), 0.1, 0.2), group_of(biases(model), 0.5, 0)}, AdamWOptions());
      train_layers(model, adam, 0);
      save(run_folder, {.model = model, .optimizer = &adam, .step = 1});
      train_layers(model, adam, 1);

      auto other = shard_layers(world);
      fsdp::AdamW turned({group_of(biases(other), 9, 9), group_of(weights(other), 9, 9)}, AdamWOptions());
      RunState run{.model = other, .optimizer = &turned};
      load(run_folder, run);
      require(options_at(turned, 0).lr() == 0.5 && options_at(turned, 0).weight_decay() == 0, "biases");
      require(options_at(turned, 1).lr() == 0.1 && options_at(turned, 1).weight_decay() == 0.2, "weights");
      train_layers(other, turned, 1);
      require_same(other.parameters(), turned, model.parameters(), adam);
    });
}

TEST(OptimizerState, GroupsWithoutParametersAreMatchedInOrder) {
  const TempFolder folder;
  run_ranks(1, [&](World& world) {
    auto model = shard_layers(world);
    fsdp::AdamW adam({group_of({}, 0.3, 0), group_of(model.parameters(), 0.1, 0), group_of({}, 0.4, 0)},
                     AdamWOptions());
    save(folder / "run", {.model = model, .optimizer = &adam, .step = 1});
    fsdp::AdamW other({group_of(model.parameters(), 9, 0), group_of({}, 9, 0), group_of({}, 9, 0)},
                      AdamWOptions());
    RunState run{.model = model, .optimizer = &other};
    load(folder / "run", run);
    require(options_at(other, 0).lr() == 0.1, "with parameters");
    require(options_at(other, 1).lr() == 0.3 && options_at(other, 2).lr() == 0.4, "without");
  });
}

TEST(OptimizerState, RefusesOtherGroups) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = shard_layers(world);
    const auto slices = model.parameters();
    fsdp::AdamW adam({group_of(weights(model), 0.1, 0.2), group_of(biases(model), 0.5, 0)}, AdamWOptions());
    train_layers(model, adam, 0);
    save(folder / "run", {.model = model, .optimizer = &adam, .step = 1});
    const auto words_for = [&](std::vector<OptimizerParamGroup> groups) {
      fsdp::AdamW other(groups, AdamWOptions());
      RunState run{.model = model, .optimizer = &other};
      const at::Tensor before = slices[0].clone();
      slices[0].mul_(2);
      const std::string words = checkpoint_error([&] { load(folder / "run", run); });
      require(slices[0].equal(before * 2) && other.state().empty(), "nothing was loaded");
      slices[0].copy_(before);
      const LoadReport report = load(folder / "run", run, {.strict = false});
      require(!report.optimizer.empty() && other.state().empty(), "nothing of the optimizer is loaded");
      require(options_at(other, 0).lr() == 9, "the group keeps its options");
      return words;
    };
    const at::NoGradGuard no_grad;
    const std::string mixed =
        words_for({group_of({slices[0], slices[1]}, 9, 9), group_of({slices[2], slices[3]}, 9, 9)});
    require_words(mixed, "both have 'first.bias', but only group 0 of the run has 'first.weight'");
    require_words(mixed, "their order does not matter");
    const std::string fewer = words_for({group_of({slices[0]}, 9, 9), group_of({slices[1]}, 9, 9)});
    require_words(fewer, "the saved optimizer has 'second.bias', 'second.weight', this one does not");
    const std::string more = words_for(
        {group_of(weights(model), 9, 9), group_of({slices[1], slices[3], model.module().image}, 9, 9)});
    require_words(more, "this optimizer has 'image', the saved one does not");
  });
}

TEST(OptimizerState, FilteredLoadsLeaveOtherGroupsAlone) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = shard_layers(world);
    fsdp::AdamW adam({group_of(weights(model), 0.1, 0.2), group_of(biases(model), 0.5, 0)}, AdamWOptions());
    train_layers(model, adam, 0);
    save(folder / "run", {.model = model, .optimizer = &adam, .step = 1});
    fsdp::AdamW other({group_of(biases(model), 9, 9), group_of(weights(model), 8, 8)}, AdamWOptions());
    RunState run{.model = model, .optimizer = &other};
    load(folder / "run", run, {.filter = [](const std::string& name) { return name.ends_with("bias"); }});
    require(options_at(other, 0).lr() == 0.5 && options_at(other, 1).lr() == 8, "options");
  });
}

TEST(OptimizerState, RefusesDifferentStepsInOneFlatShard) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = shard_layers(world);
    fsdp::AdamW adam(model.parameters(), AdamWOptions(1e-2));
    fsdp::AdamW more(weights(model), AdamWOptions(1e-2));
    train_layers(model, adam, 0);
    save(folder / "same", {.model = model, .optimizer = &adam, .step = 1});
    for (int64_t step = 1; step < 3; ++step) {  // of weights alone
      model(layers_batch(step)).square().mean().backward();
      for (at::Tensor& bias : biases(model)) bias.mutable_grad().reset();
      adam.step();
      adam.zero_grad();
    }
    save(folder / "run", {.model = model, .optimizer = &adam, .step = 3});

    fsdp::AdamW flat(model.flat_parameters(), AdamWOptions(1e-2));
    RunState run{.model = model, .optimizer = &flat};
    load(folder / "same", run);
    require(!flat.state().empty(), "the same number of steps becomes one");
    const at::Tensor moment = adam_state(flat, model.flat_parameters()[0]).exp_avg().clone();
    const std::string words = checkpoint_error([&] { load(folder / "run", run); });
    require_words(words, "'first.weight' made 3 steps, 'first.bias' made 1");
    require(adam_state(flat, model.flat_parameters()[0]).exp_avg().equal(moment), "nothing was loaded");
  });
}

TEST(OptimizerState, IgnoredParametersOfAnyMemoryOrderComeBack) {
  const TempFolder folder;
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      const std::string run_folder = folder / std::to_string(ranks);
      auto model = shard_layers(world);
      fsdp::AdamW adam(all_params(model), AdamWOptions(1e-2));
      for (int64_t step = 0; step < 2; ++step) train_layers(model, adam, step);
      save(run_folder, {.model = model, .optimizer = &adam, .step = 2});
      train_layers(model, adam, 2);
      for (const bool used : {false, true}) {  // moments are made, or filled where they are
        auto other = shard_layers(world);
        fsdp::AdamW next(all_params(other), AdamWOptions(1));
        if (used) train_layers(other, next, 7);
        RunState run{.model = other, .optimizer = &next};
        load(run_folder, run);
        train_layers(other, next, 2);
        require_same(all_params(other), next, all_params(model), adam);
      }
    });
}

template <class Optimizer>
void check_dtype(Optimizer& optimizer, const Sharded<LayersNet>& model, const std::string& folder,
                 at::ScalarType wanted, size_t casts) {
  RunState run{.model = model, .optimizer = &optimizer};
  const LoadReport report = load(folder, run);
  for (const at::Tensor& slice : model.parameters()) {
    const auto& state = adam_state(optimizer, slice);
    require(state.exp_avg().scalar_type() == wanted && state.exp_avg_sq().scalar_type() == wanted,
            std::string("moments are ") + c10::toString(state.exp_avg().scalar_type()));
  }
  require(report.cast.size() == casts, std::to_string(report.cast.size()) + " casts are told");
  if (casts > 0)
    require_words(report.cast[0], wanted == at::kFloat ? "has the dtype F32 in this optimizer, BF16 where"
                                                       : "has the dtype BF16 in this optimizer, F32 where");
}

TEST(OptimizerState, MomentsHaveTheDtypeOfTheirOptimizer) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = shard_layers(world);
    fsdp::AdamW narrow(model.parameters(), AdamWOptions(1e-2), at::kBFloat16);
    fsdp::AdamW wide(model.parameters(), AdamWOptions(1e-2));
    train_layers(model, narrow, 0);
    train_layers(model, wide, 0);
    save(folder / "narrow", {.model = model, .optimizer = &narrow, .step = 1});
    save(folder / "wide", {.model = model, .optimizer = &wide, .step = 1});
    const size_t moments = 8;
    for (const bool used : {false, true}) {
      torch::optim::AdamW stock(model.parameters(), AdamWOptions(1e-2));
      fsdp::AdamW to_narrow(model.parameters(), AdamWOptions(1e-2), at::kBFloat16);
      fsdp::AdamW to_wide(model.parameters(), AdamWOptions(1e-2));
      if (used) {
        train_layers(model, stock, 1);
        train_layers(model, to_narrow, 1);
      }
      check_dtype(stock, model, folder / "narrow", at::kFloat, moments);
      check_dtype(to_wide, model, folder / "narrow", at::kFloat, moments);
      check_dtype(to_narrow, model, folder / "wide", at::kBFloat16, moments);
      check_dtype(to_narrow, model, folder / "narrow", at::kBFloat16, 0);
      const at::Tensor slice = model.parameters()[0];
      RunState run{.model = model, .optimizer = &to_wide};
      load(folder / "narrow", run);
      require(slice.numel() == 0 || adam_state(to_wide, slice)
                                        .exp_avg_sq()
                                        .equal(adam_state(narrow, slice).exp_avg_sq().to(at::kFloat)),
              "values");
    }
  });
}

TEST(OptimizerState, CastsOfParametersAreTold) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(4, 3));
    save(folder / "run", {.model = model, .step = 1});
    auto half = fully_shard(world, torch::nn::Linear(4, 3), {.precision = bf16_true()});
    RunState run{.model = half};
    const LoadReport report = load(folder / "run", run, {.cast = true});
    require(report.cast.size() == 2, "both parameters");
    require_words(report.cast[0], "'weight' has the dtype BF16 in the model, F32 in the checkpoint");
  });
}

}  // namespace
}  // namespace fsdp::testing
