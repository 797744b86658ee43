// Promise: several optimizers may share a model, each over some of its parameters. They train it as they
// train the plain one, and are saved and loaded one by one.
#include <fsdp/checkpoint.h>
#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using torch::optim::Optimizer;

constexpr int kSteps = 8;

// AdamW over every second parameter, SGD with momentum over the others.
struct Pair {
  explicit Pair(const std::vector<Tensor>& params, Optim even_kind = Optim::fused_adamw) {
    std::vector<Tensor> even, odd;
    for (size_t i = 0; i < params.size(); ++i) (i % 2 == 0 ? even : odd).push_back(params[i]);
    first = make_optimizer(even_kind, even);
    second = make_optimizer(Optim::sgd, odd);
  }
  void step() const {
    first->step();
    second->step();
  }
  void forget() const {
    first->state().clear();
    second->state().clear();
  }

  std::unique_ptr<Optimizer> first, second;
};

State plain_pair(const std::string& name, int ranks, Optim even_kind) {
  const auto learner = make_learner(name);
  PlainTrainer trainer(*learner, ranks);
  const Pair pair(trainer.parameters(), even_kind);
  for (int step = 0; step < kSteps; ++step) {
    trainer.backward([&](int rank) { return learner->forward(learner->batch(step * ranks + rank)); });
    pair.step();
    trainer.load();
  }
  return trainer.state();
}

void train_steps(Sharded<Learner>& model, const World& world, const Pair& pair, int from, int to) {
  for (int step = from; step < to; ++step) {
    model(model.module().batch(step * world.size() + world.rank())).backward();
    pair.step();
    model.zero_grad();
  }
}

void spoil(const Sharded<Learner>& model, const Pair& pair) {
  const at::NoGradGuard no_grad;
  for (Tensor& slice : model.parameters()) slice.detach().zero_();
  pair.forget();
}

TEST(TwoOptimizers, TrainToTheBitsOfThePlainLoop) {
  for (const char* name : {"mlp", "gpt2", "frozen"})
    for (const int ranks : {1, 2, 3})
      for (const auto even_kind : {Optim::adamw, Optim::fused_adamw}) {
        const State wanted = plain_pair(name, ranks, even_kind);
        run_ranks(ranks, [&](World& world) {
          for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
            auto model = fully_shard(world, make_learner(name), {.wrap = by_size(200), .strategy = strategy});
            train_steps(model, world, Pair(model.parameters(), even_kind), 0, kSteps);
            require_same(state_of(model), wanted, name);
          }
        });
      }
}

// Each optimizer has a folder of its own; both checkpoints have the model.
TEST(TwoOptimizers, AreSavedAndLoadedOneByOne) {
  const State wanted = plain_pair("gpt2", 2, Optim::fused_adamw);
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
    const Pair pair(model.parameters());
    train_steps(model, world, pair, 0, kSteps / 2);
    RunState first{.model = model, .optimizer = pair.first.get(), .step = kSteps / 2};
    RunState second{.model = model, .optimizer = pair.second.get(), .step = kSteps / 2};
    save(folder.path() + "/first", first);
    save(folder.path() + "/second", second);
    spoil(model, pair);
    load(folder.path() + "/first", first);
    load(folder.path() + "/second", second);
    train_steps(model, world, pair, kSteps / 2, kSteps);
    require_same(state_of(model), wanted);
  });
}

TEST(TwoOptimizers, HaveStateDictsOfTheirOwn) {
  const State wanted = plain_pair("gpt2", 2, Optim::fused_adamw);
  for (const auto type : {StateDictType::full, StateDictType::sharded, StateDictType::local})
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      const Pair pair(model.parameters());
      train_steps(model, world, pair, 0, kSteps / 2);
      const StateDict values = state_dict(model, {.type = type});
      const StateDict first = optimizer_state_dict(model, *pair.first, {.type = type});
      const StateDict second = optimizer_state_dict(model, *pair.second, {.type = type});
      spoil(model, pair);
      load_state_dict(model, values);
      load_optimizer_state_dict(model, *pair.first, first);
      load_optimizer_state_dict(model, *pair.second, second);
      train_steps(model, world, pair, kSteps / 2, kSteps);
      require_same(state_of(model), wanted);
    });
}

}  // namespace
}  // namespace fsdp::testing
