// Promise: decay_groups() tells weights from biases and norms by the shape of the whole parameter, though
// every rank sees only flat slices. Training with the groups equals the plain loop.
#include <gmock/gmock.h>

#include <set>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using torch::optim::OptimizerParamGroup;

const auto kOptions = AdamWOptions(1e-2).weight_decay(0.5);

std::set<void*> pointers(const std::vector<at::Tensor>& tensors) {
  std::set<void*> all;
  for (const at::Tensor& tensor : tensors) all.insert(tensor.unsafeGetTensorImpl());
  return all;
}

TEST(DecayGroups, FollowTheShapesOfWholeParameters) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_learner("frozen"));
      std::vector<at::Tensor> matrices, vectors;
      const auto whole = make_learner("frozen")->named_parameters();
      for (const auto& item : model.named_parameters())
        if (item.value().requires_grad())
          (whole[item.key()].dim() >= 2 ? matrices : vectors).push_back(item.value());
      require(!matrices.empty() && !vectors.empty(), "there are both");
      const auto groups = decay_groups(model, kOptions);
      require(groups.size() == 2, "two groups");
      require(pointers(groups[0].params()) == pointers(matrices), "weights and embeddings");
      require(pointers(groups[1].params()) == pointers(vectors), "biases and norms");
      const auto decay = [&](size_t i) {
        return static_cast<const AdamWOptions&>(groups[i].options()).weight_decay();
      };
      require(decay(0) == 0.5 && decay(1) == 0, "the decay of each");
      require(groups[1].options().get_lr() == 1e-2, "all else is the same");
    });
}

TEST(DecayGroups, LeaveOutAnEmptyGroup) {
  run_ranks(1, [](World& world) {
    using torch::nn::Linear;
    using torch::nn::LinearOptions;
    const auto only = [&](const auto& module) { return decay_groups(fully_shard(world, module), kOptions); };
    const auto weights = only(Linear(LinearOptions(4, 4).bias(false)));
    require(weights.size() == 1, "no biases");
    require(static_cast<const AdamWOptions&>(weights[0].options()).weight_decay() == 0.5, "they decay");
    const auto norms = only(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    require(norms.size() == 1, "no weights");
    require(static_cast<const AdamWOptions&>(norms[0].options()).weight_decay() == 0, "they do not");
  });
}

State train_plain(int ranks, int steps) {
  const auto learner = make_learner("gpt2");
  PlainTrainer trainer(*learner, ranks);
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& param : trainer.parameters())
    (param.dim() >= 2 ? matrices : vectors).push_back(param);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<AdamWOptions>(kOptions));
  groups.emplace_back(vectors, std::make_unique<AdamWOptions>(AdamWOptions(kOptions).weight_decay(0)));
  AdamW optimizer(groups, AdamWOptions());
  for (int step = 0; step < steps; ++step) {
    trainer.backward([&](int rank) { return learner->forward(learner->batch(step * ranks + rank)); });
    trainer.step(optimizer);
  }
  return trainer.state();
}

TEST(DecayGroups, TrainToTheBitsOfThePlainLoop) {
  constexpr int kSteps = 4;
  for (const int ranks : {1, 2, 3}) {
    const State wanted = train_plain(ranks, kSteps);
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"));
      AdamW optimizer(decay_groups(model, kOptions), AdamWOptions());
      for (int step = 0; step < kSteps; ++step) {
        model(model.module().batch(step * world.size() + world.rank())).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      require_same(state_of(model), wanted);
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
