// Promise: norms of whole parameters and gradients are those of the plain model, on every rank.
#include <gtest/gtest.h>

#include <cmath>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

// Norms in fp64 of the plain model with the ranks' averaged gradients, in the order of its parameters.
struct PlainNorms {
  std::vector<double> parameters, gradients;
};

PlainNorms plain_norms(Learner& learner, int ranks, double p) {
  PlainTrainer trainer(learner, ranks);
  trainer.backward([&](int rank) { return learner.forward(learner.batch(rank)); });
  const auto norm = [p](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.detach().to(at::kDouble).flatten().norm(p).item<double>() : 0.0;
  };
  PlainNorms norms;
  for (const at::Tensor& param : trainer.parameters()) {
    norms.parameters.push_back(norm(param));
    norms.gradients.push_back(norm(param.grad()));
  }
  return norms;
}

// Gradients are summed in fp32, in another order.
void require_norms(const at::Tensor& found, const std::vector<double>& wanted, const World& world) {
  require(found.dim() == 1 && found.size(0) == static_cast<int64_t>(wanted.size()), "one per parameter");
  require(found.device() == world.device(), "on the device");
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto norm = found[static_cast<int64_t>(i)].item<double>();
    require(
        std::abs(norm - wanted[i]) <= 1e-5 * wanted[i] + 1e-9,
        "norm " + std::to_string(i) + " is " + std::to_string(norm) + ", not " + std::to_string(wanted[i]));
  }
}

struct NormsCase {
  int ranks;
  ShardOptions options;
};

TEST(Norms, AreThoseOfThePlainModel) {
  std::vector<NormsCase> cases;
  for (const int ranks : {1, 2, 3}) {
    cases.push_back({ranks, {.wrap = by_size(200)}});
    cases.push_back({ranks, {.wrap = by_size(200), .strategy = Strategy::no_shard}});
    cases.push_back({ranks, {.wrap = by_size(200), .replicate_below = 100}});
  }
  cases.push_back({4, {.wrap = by_size(200), .strategy = Strategy::hybrid_shard, .shard_size = 2}});
  for (const auto& [ranks, options] : cases)
    for (const double p : {2.0, 1.0, static_cast<double>(INFINITY)})
      for (const char* name : {"mlp", "frozen"}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(ranks) + " ranks, p = " + std::to_string(p));
        const PlainNorms wanted = plain_norms(*make_learner(name), ranks, p);
        EXPECT_NO_THROW(run_ranks(ranks, [&](World& world) {
          auto model = fully_shard(world, make_learner(name), options);
          require_norms(model.gradient_norms(p), std::vector<double>(wanted.gradients.size(), 0.0), world);
          model(model.module().batch(world.rank())).backward();
          require_norms(model.parameter_norms(p), wanted.parameters, world);
          require_norms(model.gradient_norms(p), wanted.gradients, world);
          require(model.parameters().size() == wanted.parameters.size(), "the order of parameters()");
        }));
      }
}

// LAMB as docs/sharding.md has it: each layer's step is as long as its weights, times the learning rate.
TEST(Norms, ScaleALayerwiseStep) {
  constexpr double kRate = 0.01;
  const auto learner = make_learner("mlp");
  PlainTrainer plain(*learner, 3);
  plain.backward([&](int rank) { return learner->forward(learner->batch(rank)); });
  for (const at::Tensor& param : plain.parameters())
    param.detach().sub_(param.grad() * (param.detach().norm() / param.grad().norm().clamp_min(1e-12)), kRate);
  const State wanted = plain.state();
  run_ranks(3, [&](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    model(model.module().batch(world.rank())).backward();
    const at::Tensor ratio = model.parameter_norms() / model.gradient_norms().clamp_min(1e-12);
    {
      const at::NoGradGuard no_grad;
      const auto params = model.parameters();
      for (size_t i = 0; i < params.size(); ++i)
        at::Tensor(params[i]).sub_(params[i].grad() * ratio[static_cast<int64_t>(i)], kRate);
    }
    const double off = drift(state_of(model), wanted);
    require(off < 1e-6, "drift " + std::to_string(off));
  });
}

TEST(Norms, NanReachesEveryRankAndANegativeNormIsRefused) {
  run_ranks(3, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    model(model.module().batch(world.rank())).backward();
    if (world.rank() == 0) model.parameters()[0].mutable_grad().fill_(NAN);
    for (const double p : {2.0, static_cast<double>(INFINITY)}) {
      const at::Tensor norms = model.gradient_norms(p);
      require(norms[0].isnan().item<bool>() && norms.isnan().sum().item<int64_t>() == 1, "NaN where it is");
    }
    require_words(refusal([&] { model.parameter_norms(0); }), "positive or infinity");
  });
}

}  // namespace
}  // namespace fsdp::testing
