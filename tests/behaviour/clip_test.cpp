// Promise: clipping sees the gradients of all ranks, as torch's own sees those of the plain model.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>

#include <cmath>
#include <limits>
#include <mutex>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// torch adds up norms in fp32, we in fp64: its rounding, of a few thousand terms.
constexpr double kTolerance = 1e-5;

std::vector<Tensor> unique_parameters(Learner& learner) {
  std::vector<Tensor> params;
  for (auto& param : learner.parameters())
    if (std::none_of(params.begin(), params.end(), [&](const Tensor& seen) { return seen.is_same(param); }))
      params.push_back(param);
  return params;
}

// The plain model with the averaged gradients of all ranks' batches.
std::shared_ptr<Learner> plain_with_gradients(const std::string& name, int ranks) {
  auto learner = make_learner(name);
  const auto params = unique_parameters(*learner);
  std::vector<std::vector<Tensor>> grads(params.size());
  for (int rank = 0; rank < ranks; ++rank) {
    learner->zero_grad();
    learner->forward(learner->batch(rank)).backward();
    for (size_t i = 0; i < params.size(); ++i) grads[i].push_back(params[i].grad());
  }
  for (size_t i = 0; i < params.size(); ++i)
    if (grads[i].front().defined())
      params[i].mutable_grad() = tree_sum(grads[i]).mul(1.0F / static_cast<float>(ranks));
  return learner;
}

// This rank's slice of a whole tensor.
Tensor slice_of(const Tensor& whole, const ParameterInfo& info) {
  for (const ParameterShard& shard : info.shards)
    if (shard.is_local) return whole.flatten().narrow(0, shard.start, shard.size);
  return whole.flatten().narrow(0, 0, 0);
}

// The sharded gradients are the plain ones, up to `tolerance` of the largest.
void require_gradients(Sharded<Learner>& model, Learner& plain, double tolerance) {
  const auto wanted = plain.named_parameters();
  for (const auto& item : model.named_parameters()) {
    const Tensor& grad = wanted[item.key()].grad();
    require(grad.defined() == item.value().grad().defined(), item.key() + " has a gradient, or none");
    if (!grad.defined()) continue;
    const Tensor slice = slice_of(grad, model.parameter_info(item.key()));
    require(at::allclose(item.value().grad(), slice, tolerance, tolerance * grad.abs().max().item<double>()),
            item.key() + "'s gradient is the plain model's");
  }
}

struct Case {
  std::string learner;
  int ranks;
  ShardOptions options;
};

void expect_torchs_norm(const Case& one, double norm_type, double share) {
  SCOPED_TRACE(one.learner + " on " + std::to_string(one.ranks) + " ranks, norm " +
               std::to_string(norm_type));
  const auto plain = plain_with_gradients(one.learner, one.ranks);
  const double whole = torch::nn::utils::clip_grad_norm_(unique_parameters(*plain), 1e30, norm_type);
  const double limit = whole * share;
  torch::nn::utils::clip_grad_norm_(unique_parameters(*plain), limit, norm_type);
  std::vector<std::shared_ptr<Learner>> modules;
  for (int r = 0; r < one.ranks; ++r) modules.push_back(make_learner(one.learner));
  std::vector<double> norms;
  std::mutex mutex;
  EXPECT_NO_THROW(run_ranks(one.ranks, [&](World& world) {
    auto model = fully_shard(world, modules[static_cast<size_t>(world.rank())], one.options);
    model(model.module().batch(world.rank())).backward();
    const Tensor norm = model.clip_grad_norm_(limit, norm_type);
    require(norm.dim() == 0, "a scalar");
    require_gradients(model, *plain, 2 * kTolerance);
    const std::lock_guard lock(mutex);
    norms.push_back(norm.item<double>());
  }));
  ASSERT_EQ(norms.size(), static_cast<size_t>(one.ranks));
  for (const double norm : norms) {
    EXPECT_EQ(norm, norms.front()) << "every rank has the same bits";
    EXPECT_NEAR(norm, whole, kTolerance * whole);
  }
}

TEST(Clip, EveryNormEqualsTorchs) {
  for (const char* learner : {"mlp", "gpt2"})
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const double norm_type : {2.0, kInfinity, 1.0, 3.0})
        expect_torchs_norm({learner, ranks, {.wrap = by_size(200)}}, norm_type, 0.25);
}

// Within the limit nothing is scaled: the bits stay.
TEST(Clip, SmallGradientsStayAsTheyAre) {
  for (const int ranks : {1, 2, 3}) {
    const auto plain = plain_with_gradients("gpt2", ranks);
    std::vector<std::shared_ptr<Learner>> modules;
    for (int r = 0; r < ranks; ++r) modules.push_back(make_learner("gpt2"));
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, modules[static_cast<size_t>(world.rank())], {.wrap = by_size(200)});
      model(model.module().batch(world.rank())).backward();
      model.clip_grad_norm_(1e6);
      require_gradients(model, *plain, 0);
    });
  }
}

TEST(Clip, ReplicatedParametersCountOnce) {
  for (const int ranks : {1, 2, 3, 4})
    for (const double norm_type : {2.0, kInfinity, 1.0}) {
      expect_torchs_norm({"gpt2", ranks, {.wrap = by_size(200), .replicate_below = 100}}, norm_type, 0.25);
      expect_torchs_norm({"gpt2", ranks, {.wrap = by_size(200), .strategy = Strategy::no_shard}}, norm_type,
                         0.25);
    }
}

TEST(Clip, FrozenParametersHaveNoPart) {
  for (const int ranks : {1, 2, 3})
    for (const double norm_type : {2.0, kInfinity})
      expect_torchs_norm({"frozen", ranks, {.wrap = by_size(200)}}, norm_type, 0.25);
}

TEST(Clip, WithoutGradientsTheNormIsZero) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
      for (const double norm_type : {2.0, kInfinity, 1.0})
        require(model.clip_grad_norm_(1.0, norm_type).item<double>() == 0, "0 before any backward");
      model.clip_grad_value_(0.1);
      model(model.module().batch(world.rank())).backward();
      model.zero_grad();
      require(model.clip_grad_norm_(1.0).item<double>() == 0, "0 after zero_grad");
    });
}

// One NaN, on one rank, in one slice: all ranks hear of it, and no rank's gradients look healthy.
TEST(Clip, NanReachesEveryRank) {
  for (const int ranks : {1, 2, 3})
    for (const double norm_type : {2.0, kInfinity, 1.0})
      for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity})
        run_ranks(ranks, [&](World& world) {
          auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
          model(model.module().batch(world.rank())).backward();
          if (world.rank() == world.size() - 1)
            for (auto& slice : model.parameters())
              if (slice.numel() > 0) {
                slice.mutable_grad()[0] = bad;
                break;
              }
          const auto norm = model.clip_grad_norm_(1.0, norm_type).item<double>();
          if (std::isnan(bad)) {
            require(std::isnan(norm), "the norm is NaN");
            for (const auto& slice : model.parameters())
              require(slice.numel() == 0 || slice.grad().isnan().all().item<bool>(), "as torch leaves them");
          } else {
            require(std::isinf(norm), "the norm is infinite");
          }
        });
}

TEST(Clip, ValuesAreClippedAsTorchDoes) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto plain = plain_with_gradients("gpt2", ranks);
    double largest = 0;
    for (const Tensor& param : unique_parameters(*plain))
      largest = std::max(largest, param.grad().abs().max().item<double>());
    torch::nn::utils::clip_grad_value_(unique_parameters(*plain), largest / 10);
    std::vector<std::shared_ptr<Learner>> modules;
    for (int r = 0; r < ranks; ++r) modules.push_back(make_learner("gpt2"));
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, modules[static_cast<size_t>(world.rank())],
                               {.wrap = by_size(200), .replicate_below = 50});
      model(model.module().batch(world.rank())).backward();
      model.clip_grad_value_(largest / 10);
      require_gradients(model, *plain, 0);
    });
  }
}

// A training loop that clips ends where the plain one ends; the scale is rounded differently, hence not to
// the bit.
TEST(Clip, TrainingWithClipping) {
  constexpr int kSteps = 8;
  constexpr double kLimit = 0.2;
  for (const int ranks : {1, 2, 3}) {
    const auto plain = make_learner("gpt2");
    const auto params = unique_parameters(*plain);
    const auto optimizer = make_optimizer(Optim::sgd, params);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::vector<Tensor>> grads(params.size());
      for (int rank = 0; rank < ranks; ++rank) {
        optimizer->zero_grad();
        plain->forward(plain->batch(step * ranks + rank)).backward();
        for (size_t i = 0; i < params.size(); ++i) grads[i].push_back(params[i].grad());
      }
      for (size_t i = 0; i < params.size(); ++i)
        params[i].mutable_grad() = tree_sum(grads[i]).mul(1.0F / static_cast<float>(ranks));
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(params, kLimit), kLimit) << "clipping has something to do";
      optimizer->step();
    }
    const State wanted = state_of(*plain);
    std::vector<std::shared_ptr<Learner>> modules;
    for (int r = 0; r < ranks; ++r) modules.push_back(make_learner("gpt2"));
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, modules[static_cast<size_t>(world.rank())], {.wrap = by_size(200)});
      const auto sharded = make_optimizer(Optim::sgd, model.parameters());
      for (int step = 0; step < kSteps; ++step) {
        model(model.module().batch(step * ranks + world.rank())).backward();
        model.clip_grad_norm_(kLimit);
        sharded->step();
        sharded->zero_grad();
      }
      const double off = drift(state_of(model), wanted);
      require(off < kTolerance, "drift " + std::to_string(off));
    });
  }
}

// How often `fn` calls each operator, on this thread.
std::map<std::string, int> operators_of(const std::function<void()>& fn) {
  thread_local std::map<std::string, int> counts;
  counts.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
        ++counts[op.name()];
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  fn();
  at::removeCallback(handle);
  return counts;
}

// One operator for all norms and one for all gradients: on a device, a few kernels.
TEST(Clip, TheNumberOfKernelsDoesNotGrowWithTheModel) {
  run_ranks(1, [&](World& world) {
    auto model = fully_shard(world, make_gpt2(12, 16), {});
    model(model.module().batch(0)).backward();
    const auto counts = operators_of([&] { model.clip_grad_norm_(0.1); });
    const auto times = [&](const char* name) { return counts.contains(name) ? counts.at(name) : 0; };
    std::string names;
    for (const auto& [name, count] : counts) names += name + " " + std::to_string(count) + ", ";
    require(times("aten::_foreach_norm") == 1, "norms are taken together: " + names);
    require(times("aten::_foreach_mul_") == 1, "gradients are scaled together");
  });
}

}  // namespace
}  // namespace fsdp::testing
