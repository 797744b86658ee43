// Promise: where ranks, blocks or microbatches start does not change where a training ends.
#include <gtest/gtest.h>

#include <optional>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kStartsSteps = 3;

// Every rank but the first has drawn other weights.
std::shared_ptr<Learner> learner_of_rank(const std::string& name, const World& world) {
  auto learner = make_learner(name);
  const at::NoGradGuard no_grad;
  for (at::Tensor& param : learner->parameters()) param.add_(0.25 * world.rank());
  return learner;
}

TEST(Starts, RanksWithDifferentWeightsTrainThoseOfRankZero) {
  for (const bool share : {true, false}) {
    run_ranks(4, [&](World& world) {
      const State wanted = train_plain(*make_learner("gpt2"), world.size(), kStartsSteps, Optim::sgd);
      auto model =
          fully_shard(world, learner_of_rank("gpt2", world), {.wrap = by_size(200), .share_shards = share});
      train_sharded(model, world, kStartsSteps, Optim::sgd);
      require_same(state_of(model), wanted);
    });
  }
}

TEST(Starts, WithoutSyncEachRankKeepsItsPartOfItsOwnWeights) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, learner_of_rank("mlp", world),
                             {.wrap = by_size(200), .sync_module_states = false});
    const State first = state_of(*make_learner("mlp"));
    int64_t own = 0, other = 0;
    for (const auto& [name, value] : state_of(model)) {
      own += value.eq(first.at(name)).sum().item<int64_t>();
      other += value.eq(first.at(name) + 0.25).sum().item<int64_t>();
    }
    require(own > 0 && other > 0, "elements of rank 0's weights and of rank 1's");
  });
}

// Gradients of bf16 microbatches are added in fp32.
TEST(Starts, MicrobatchesInBf16AddUpInFp32) {
  for (const bool share : {true, false}) {
    run_ranks(2, [&](World& world) {
      constexpr int kMicrobatches = 3;
      const State wanted = train_plain(*make_learner("mlp"), world.size(), kStartsSteps, Optim::sgd,
                                       at::kBFloat16, kMicrobatches);
      auto model = fully_shard(world, make_learner("mlp"),
                               {.wrap = by_size(200), .precision = bf16(), .share_shards = share});
      const auto optimizer = make_optimizer(Optim::sgd, model.parameters());
      for (int step = 0; step < kStartsSteps; ++step) {
        for (int m = 0; m < kMicrobatches; ++m) {
          std::optional<NoSync> kept;
          if (m + 1 < kMicrobatches) kept.emplace(model.engine());
          const int64_t index = (int64_t{step} * kMicrobatches + m) * world.size() + world.rank();
          model(model.module().batch_on(index, world.device(), at::kBFloat16)).backward();
        }
        optimizer->step();
        optimizer->zero_grad();
      }
      require_same(state_of(model), wanted);
    });
  }
}

// A matrix that may be another one's.
struct HalfImpl : torch::nn::Module {
  explicit HalfImpl(const at::Tensor& tied = {}) {
    weight = register_parameter("weight", tied.defined() ? tied : 0.3 * torch::randn({6, 6}));
    bias = register_parameter("bias", torch::zeros({6}));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

struct HalvesImpl : torch::nn::Module {
  HalvesImpl() {
    const SeededHere seed(3);
    first = register_module("first", std::make_shared<HalfImpl>());
    second = register_module("second", std::make_shared<HalfImpl>(first->weight));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(torch::tanh(first->forward(x))).square().mean();
  }
  std::shared_ptr<HalfImpl> first, second;
};

at::Tensor input_of(int64_t index) {
  const SeededHere seed(100 + static_cast<uint64_t>(index));
  return torch::randn({4, 6});
}

// The second block has a parameter of the first one's unit: it cannot have a unit of its own with it. That is
// said, nothing is lost, and the whole takes both.
TEST(Starts, BlocksThatShareAParameterAreShardedByTheModelAroundThem) {
  run_ranks(2, [](World& world) {
    auto net = std::make_shared<HalvesImpl>();
    auto first = fully_shard(world, net->first);
    const std::string words = refusal([&] { fully_shard(world, net->second); });
    require_words(words, "parameter 'weight' was sharded together with");
    auto model = fully_shard(world, net, {.wrap = whole_model()});
    torch::optim::SGD optimizer(model.parameters(), 0.1);

    HalvesImpl plain;
    PlainTrainer trainer(plain, world.size());
    torch::optim::SGD reference(trainer.parameters(), 0.1);
    for (int64_t step = 0; step < kStartsSteps; ++step) {
      model(input_of(2 * step + world.rank())).backward();
      optimizer.step();
      optimizer.zero_grad();
      trainer.backward([&](int rank) { return plain.forward(input_of(2 * step + rank)); });
      trainer.step(reference);
    }
    const auto whole = model.full_params();
    require(net->second->weight.data_ptr() == net->first->weight.data_ptr(), "the two are one");
    require_same(state_of(*net), trainer.state(), "they train as one model: ");
  });
}

}  // namespace
}  // namespace fsdp::testing
