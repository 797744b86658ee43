// Promise: a layer of experts, of which the data chooses, trains without a wrap policy; and where a policy
// takes experts apart, the error says what to make one unit.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

struct ExpertImpl : torch::nn::Module {
  ExpertImpl() {
    in = register_module("in", torch::nn::Linear(6, 24));
    out = register_module("out", torch::nn::Linear(24, 6));
  }
  Tensor forward(const Tensor& x) { return out(in(x).relu()); }
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Expert);

// Sends its whole batch to one expert.
struct RoutedImpl : torch::nn::Module {
  RoutedImpl() {
    scores = register_module("scores", torch::nn::Linear(6, 4));
    register_module("experts", experts);
    for (int i = 0; i < 4; ++i) experts->push_back(Expert());
  }
  Tensor forward(const Tensor& x) {
    const Tensor weights = scores(x).mean(0).softmax(0);
    const auto best = chosen >= 0 ? chosen : weights.argmax().item<int64_t>();
    return experts->at<ExpertImpl>(static_cast<size_t>(best)).forward(x) * weights[best];
  }
  torch::nn::Linear scores{nullptr};
  torch::nn::ModuleList experts;
  int64_t chosen = -1;
};
TORCH_MODULE(Routed);

struct RoutedNet : Learner {
  RoutedNet() {
    const SeededHere seeded(8);
    embed = register_module("embed", torch::nn::Linear(6, 6));
    moe = register_module("moe", Routed());
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({3, 6}, gen), torch::randn({3, 2}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    return torch::mse_loss(head(moe(embed(batch[0]))), batch[1]);
  }
  torch::nn::Linear embed{nullptr}, head{nullptr};
  Routed moe{nullptr};
};

// Ranks choose different experts in the same step.
TEST(Experts, TrainWithoutAWrapPolicy) {
  for (const int ranks : {2, 3})
    EXPECT_NO_THROW(run_ranks(ranks, [](World& world) {
      const auto net = std::make_shared<RoutedNet>();
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(net),
                               {.comm = {.timeout = std::chrono::seconds(20)}});
      for (int step = 0; step < 4; ++step) {
        net->moe->chosen = (world.rank() + step) % 4;
        model(net->batch(world.rank())).backward();
        model.zero_grad();
      }
    }));
}

TEST(Experts, TakenApartTheyAreToldWhatToWrap) {
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<RoutedNet>();
    auto model =
        fully_shard(world, std::static_pointer_cast<Learner>(net),
                    {.wrap = by_type_name({"Expert"}), .comm = {.timeout = std::chrono::seconds(20)}});
    net->moe->chosen = world.rank();
    std::string words = "not refused";
    try {
      model(net->batch(world.rank())).backward();
    } catch (const CommError& error) {
      words = error.what();
      require(error.details().fault == CommFault::mismatch, words);
    }
    require_words(words, "'moe.experts.0'");
    require_words(words, "make 'moe.experts' one unit");
    require_words(words, "ShardOptions::wrap");
  });
}

}  // namespace
}  // namespace fsdp::testing
