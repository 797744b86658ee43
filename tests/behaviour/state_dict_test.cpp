// Promise: a model's tensors can be taken out and put in by name, whole, as boxes or as flat shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "behaviour/checkpoint_net.h"
#include "behaviour/layers_net.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

struct Pair {
  explicit Pair(const World& world, const ShardOptions& options = mixed_options(), uint64_t seed = 3)
      : model(fully_shard(world, std::make_shared<MixedNet>(seed), options)),
        optimizer(model.parameters(), AdamWOptions(1e-2)) {}
  void step(const World& world, int64_t number) {
    model(model.module().batch(number * world.size() + world.rank())).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  Sharded<MixedNet> model;
  AdamW optimizer;
};

const char* const kTypes[] = {"full", "local", "sharded"};

ShardOptions hybrid() {
  ShardOptions options = mixed_options();
  options.strategy = Strategy::hybrid_shard;
  options.shard_size = 2;
  return options;
}

TEST(StateDict, EveryTypeGoesThereAndBack) {
  for (const int ranks : {1, 2, 3, 4})
    for (const bool rows : {false, true}) {
      if (rows && ranks != 4) continue;
      SCOPED_TRACE(std::to_string(ranks) + (rows ? " in rows" : ""));
      run_ranks(ranks, [&](World& world) {
        const ShardOptions options = rows ? hybrid() : mixed_options();
        Pair pair(world, options), other(world, options, 99);
        pair.step(world, 0);
        pair.step(world, 1);
        const auto wanted = whole_state(pair.model);
        for (size_t i = 0; i < 3; ++i) {
          const auto type = static_cast<StateDictType>(i);
          const StateDict state = state_dict(pair.model, {.type = type, .offload = i == 0});
          pair.step(world, 2);  // what was taken out is a copy
          other.step(world, 0);
          load_state_dict(other.model, state);
          std::string wrong = difference(whole_state(other.model), wanted);
          require(wrong.empty(), std::string(kTypes[i]) + ": " + wrong);
          load_state_dict(pair.model, state);
        }
      });
    }
}

TEST(StateDict, FullOnesAreWholeUnderEveryName) {
  run_ranks(3, [](World& world) {
    Pair pair(world);
    const auto wanted = whole_state(pair.model);
    const StateDict state = state_dict(pair.model, {.offload = true, .rank0_only = true});
    require(state.is_empty() == (world.rank() != 0), "rank 0 only");
    if (world.rank() != 0) return;
    std::map<std::string, at::Tensor> whole;
    for (const auto& item : state) whole[item.key()] = item.value().boxes.at(0).tensor;
    const std::string wrong = difference(whole, wanted);
    require(wrong.empty(), wrong);
    require(state["head"].boxes[0].tensor.is_same(state["embedding.weight"].boxes[0].tensor), "tied");
  });
}

TEST(StateDict, MomentsGoToAnotherOptimizer) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    run_ranks(ranks, [&](World& world) {
      Pair pair(world), plain(world);
      for (int64_t step = 0; step < 3; ++step) pair.step(world, step);
      for (const auto type : {StateDictType::full, StateDictType::local, StateDictType::sharded}) {
        Pair next(world);
        load_state_dict(next.model, state_dict(pair.model));
        const StateDict moments = optimizer_state_dict(pair.model, pair.optimizer, {.type = type});
        require(moments.contains("state.up.weight.exp_avg") || type != StateDictType::full, "names");
        require(moments.contains("flat.state.scale.exp_avg") == (type == StateDictType::local) ||
                    world.size() > 1,
                "names of local ones");
        load_optimizer_state_dict(next.model, next.optimizer, moments);
        Pair again(world);
        load_state_dict(again.model, state_dict(pair.model));
        load_optimizer_state_dict(again.model, again.optimizer,
                                  optimizer_state_dict(pair.model, pair.optimizer));
        next.step(world, 3);
        again.step(world, 3);
        const std::string wrong = difference(whole_state(next.model), whole_state(again.model));
        require(wrong.empty(), wrong);
      }
      // Bits: a step after the moments went there is the step the first would have made.
      Pair next(world);
      load_state_dict(next.model, state_dict(pair.model));
      load_optimizer_state_dict(next.model, next.optimizer, optimizer_state_dict(pair.model, pair.optimizer));
      pair.step(world, 4);
      next.step(world, 4);
      const std::string wrong = difference(whole_state(next.model), whole_state(pair.model));
      require(wrong.empty(), wrong);
    });
  }
}

TEST(StateDict, WhatDoesNotFitIsListedAndNothingIsTouched) {
  run_ranks(2, [](World& world) {
    Pair pair(world);
    const auto before = whole_state(pair.model);
    StateDict state = state_dict(pair.model);
    StateDict odd("tensor");
    for (const auto& item : state) {
      StateEntry entry = item.value();
      if (item.key() == "up.weight")
        entry = {.shape = {3}, .boxes = {{.offsets = {0}, .tensor = torch::zeros({3})}}};
      if (item.key() == "scale") entry.boxes[0].tensor = entry.boxes[0].tensor.to(at::kDouble);
      if (item.key() != "row") odd.insert(item.key(), entry);
      if (item.key() == "down.weight") odd[item.key()].boxes[0].tensor.fill_(7);
    }
    odd.insert("surplus", state["scale"]);
    try {
      load_state_dict(pair.model, odd);
      require(false, "not refused");
    } catch (const CheckpointError& error) {
      for (const char* words : {"'row' is missing", "'up.weight' has another shape",
                                "'scale' has another dtype", "'surplus' is unexpected", "nothing was loaded"})
        require_words(error.what(), words);
    }
    std::string wrong = difference(whole_state(pair.model), before);
    require(wrong.empty(), wrong);
    load_state_dict(pair.model, odd, /*strict=*/false);
    const auto after = whole_state(pair.model);
    require(after.at("down.weight").eq(7).all().item<bool>(), "what fits is loaded");
    require(after.at("row").equal(before.at("row")), "what is missing stays");
  });
}

TEST(StateDict, RefusesEntriesThatNoTensorHas) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, torch::nn::BatchNorm1d(6));
    const StateDict good = state_dict(model);
    const auto words_for = [&](const std::string& name, const StateEntry& entry) {
      StateDict state("tensor");
      for (const auto& item : good) state.insert(item.key(), item.key() == name ? entry : item.value());
      const std::string words = checkpoint_error([&] { load_state_dict(model, state); });
      load_state_dict(model, state, /*strict=*/false);  // keeps what it has
      for (const auto& item : state_dict(model))
        require(item.value().boxes[0].tensor.equal(good[item.key()].boxes[0].tensor), "nothing was loaded");
      return words;
    };
    const at::Tensor half = torch::full({3}, 7.0), all = torch::full({6}, 7.0);
    for (const std::string name : {"weight", "running_mean"}) {  // sharded, and each rank's own
      const auto expect = [&](const std::vector<TensorBox>& boxes, const std::string& words) {
        require_words(words_for(name, {.shape = {6}, .boxes = boxes}), "'" + name + "' " + words);
      };
      expect({{.offsets = {}, .tensor = all}}, "has a box at [] of the shape [6], expected 1 offsets");
      expect({{.offsets = {0, 0}, .tensor = all}},
             "has a box at [0, 0] of the shape [6], expected 1 offsets");
      expect({{.offsets = {0}, .tensor = all.view({2, 3})}},
             "has a box at [0] of the shape [2, 3], expected");
      expect({{.offsets = {1}, .tensor = all}}, "has a box at [1] of the shape [6], which is not inside [6]");
      expect({{.offsets = {-3}, .tensor = all}}, "has a box at [-3] of the shape [6], which is not inside");
      expect({{.offsets = {INT64_MAX}, .tensor = half}}, "has a box at [9223372036854775807]");
      expect({{.offsets = {0}, .tensor = {}}}, "has a box without a tensor");
      expect({{.offsets = {0}, .tensor = all.to_sparse()}}, "has a box whose tensor is sparse");
      expect({{.offsets = {0}, .tensor = half}, {.offsets = {0}, .tensor = half}},
             "has boxes that overlap, at [0] and [0]");
      expect({{.offsets = {0}, .tensor = all.to(at::kDouble)}}, "has another dtype: Double, expected Float");
    }
    require_words(words_for("running_mean", {.shape = {6}, .boxes = {}}), "is not all there");
    require_words(words_for("running_mean", {.shape = {6}, .boxes = {{.offsets = {0}, .tensor = half}}}),
                  "is not all there");
    // Halves in any order are all of it.
    StateDict halves("tensor");
    for (const auto& item : good)
      halves.insert(item.key(), item.key().starts_with("num_batches")
                                    ? item.value()
                                    : StateEntry{.shape = {6},
                                                 .boxes = {{.offsets = {3}, .tensor = half * 2},
                                                           {.offsets = {0}, .tensor = half}}});
    load_state_dict(model, halves);
    require(model.module().running_mean.equal(torch::cat({half, half * 2})), "a buffer of two boxes");
    require(state_dict(model)["weight"].boxes[0].tensor.equal(torch::cat({half, half * 2})), "two boxes");
  });
}

TEST(StateDict, VisitingHoldsOneUnitAtATime) {
  run_ranks(2, [](World& world) {
    Pair pair(world);
    const auto wanted = whole_state(pair.model);
    std::map<std::string, at::Tensor> seen;
    visit_state_dict(pair.model, {.rank0_only = true},
                     [&](const std::string& name, const at::Tensor& whole) { seen[name] = whole.clone(); });
    if (world.rank() != 0) return require(seen.empty(), "rank 0 only");
    const std::string wrong = difference(seen, wanted);
    require(wrong.empty(), wrong);
  });
}

}  // namespace
}  // namespace fsdp::testing
