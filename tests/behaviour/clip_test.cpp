// Promise: clipping sees the gradients of all ranks, as torch's own sees those of the plain model.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// torch adds up norms in fp32, we in fp64: its rounding, of a few thousand terms.
constexpr double kTolerance = 1e-5;

// Trains the plain model; it has the averaged gradients of all ranks' first batches.
PlainTrainer with_gradients(Learner& learner, int ranks) {
  PlainTrainer trainer(learner, ranks);
  trainer.backward([&](int rank) { return learner.forward(learner.batch(rank)); });
  return trainer;
}

// This rank's slice of a whole tensor.
Tensor slice_of(const Tensor& whole, const ParameterInfo& info) {
  for (const ParameterShard& shard : info.shards)
    if (shard.is_local) return whole.flatten().narrow(0, shard.start, shard.size);
  return whole.flatten().narrow(0, 0, 0);
}

// The sharded gradients are the plain ones, up to `tolerance` of the largest.
void require_near(const Sharded<Learner>& model, const State& wanted, double tolerance) {
  for (const auto& item : model.named_parameters()) {
    const auto found = wanted.find(item.key());
    require((found != wanted.end()) == item.value().grad().defined(),
            item.key() + " has a gradient, or none");
    if (found == wanted.end()) continue;
    const Tensor slice = slice_of(found->second, model.parameter_info(item.key()));
    require(at::allclose(item.value().grad(), slice, tolerance,
                         tolerance * found->second.abs().max().item<double>()),
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
  const auto learner = make_learner(one.learner);
  const PlainTrainer plain = with_gradients(*learner, one.ranks);
  const double whole = torch::nn::utils::clip_grad_norm_(plain.parameters(), 1e30, norm_type);
  const double limit = whole * share;
  torch::nn::utils::clip_grad_norm_(plain.parameters(), limit, norm_type);
  std::vector<double> norms;
  std::mutex mutex;
  EXPECT_NO_THROW(run_ranks(one.ranks, [&](World& world) {
    auto model = fully_shard(world, make_learner(one.learner), one.options);
    model(model.module().batch(world.rank())).backward();
    const Tensor norm = model.clip_grad_norm_(limit, norm_type);
    require(norm.dim() == 0, "a scalar");
    require_near(model, plain.gradients(), 2 * kTolerance);
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
    const auto learner = make_learner("gpt2");
    const State wanted = with_gradients(*learner, ranks).gradients();
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      model(model.module().batch(world.rank())).backward();
      model.clip_grad_norm_(1e6);
      require_gradients(model, wanted);
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
    const auto learner = make_learner("gpt2");
    const PlainTrainer plain = with_gradients(*learner, ranks);
    double largest = 0;
    for (const auto& [name, grad] : plain.gradients())
      largest = std::max(largest, grad.abs().max().item<double>());
    torch::nn::utils::clip_grad_value_(plain.parameters(), largest / 10);
    const State wanted = plain.gradients();
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200), .replicate_below = 50});
      model(model.module().batch(world.rank())).backward();
      model.clip_grad_value_(largest / 10);
      require_gradients(model, wanted);
    });
  }
}

// A training loop that clips ends where the plain one ends; the scale is rounded differently, hence not to
// the bit.
TEST(Clip, TrainingWithClipping) {
  constexpr int kClipSteps = 8;
  constexpr double kLimit = 0.2;
  for (const int ranks : {1, 2, 3}) {
    const auto learner = make_learner("gpt2");
    PlainTrainer plain(*learner, ranks);
    const auto optimizer = make_optimizer(Optim::sgd, plain.parameters());
    for (int step = 0; step < kClipSteps; ++step) {
      plain.backward([&](int rank) { return learner->forward(learner->batch(step * ranks + rank)); });
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(plain.parameters(), kLimit), kLimit)
          << "clipping has something to do";
      plain.step(*optimizer);
    }
    const State wanted = plain.state();
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_learner("gpt2"), {.wrap = by_size(200)});
      ShardedTwin twin(world, model, optimizer_of(Optim::sgd));
      for (int step = 0; step < kClipSteps; ++step)
        twin.train([&](auto& twin, const Moment&) {
          twin.loss().backward();
          twin.clip_grad_norm_(kLimit);
        });
      const double off = drift(state_of(model), wanted);
      require(off < kTolerance, "drift " + std::to_string(off));
    });
  }
}

// Two models with one start: clip_grad_norm_() and step() on one, step_clipped() on the other.
void require_equal_steps(World& world, at::ScalarType dtype, double limit, const ShardOptions& options) {
  const auto make = [&] {
    auto learner = make_learner("gpt2");
    learner->to(world.device(), dtype);
    return fully_shard(world, learner, options);
  };
  auto apart = make(), at_once = make();
  // A parameter that is no slice is not clipped.
  Tensor loose = torch::ones({3}, world.device()), other = torch::ones({3}, world.device());
  const auto with = [](auto& model, const Tensor& one) {
    auto params = model.parameters();
    params.push_back(one);
    return fsdp::AdamW(params, fsdp::AdamWOptions(1e-2).weight_decay(0.1));
  };
  auto first = with(apart, loose), second = with(at_once, other);
  for (int step = 0; step < 4; ++step) {
    for (auto* model : {&apart, &at_once}) {
      const auto batch = model->module().batch_on(step * world.size() + world.rank(), world.device());
      (*model)(batch).backward();
    }
    loose.mutable_grad() = torch::full({3}, 0.5 + step, world.device());
    other.mutable_grad() = torch::full({3}, 0.5 + step, world.device());
    const Tensor norm = apart.clip_grad_norm_(limit);
    first.step();
    const Tensor same = at_once.get_total_norm();
    second.step_clipped(same, limit);
    require(norm.equal(same), "get_total_norm() is what clip_grad_norm_() returns");
    require(norm.item<double>() > 0.05, "clipping has something to do");
    apart.zero_grad();
    at_once.zero_grad();
  }
  require(torch::equal(loose, other), "parameters that are no slices");
  const auto wanted = apart.parameters(), got = at_once.parameters();
  for (size_t i = 0; i < wanted.size(); ++i)
    require(torch::equal(got[i], wanted[i]), "parameter " + std::to_string(i));
}

TEST(Clip, StepClippedGivesTheBitsOfClippingAndAStep) {
  for (const int ranks : {1, 2})
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
      for (const double limit : {0.05, 1e6})
        run_ranks(ranks, [&](World& world) {
          require_equal_steps(world, dtype, limit, {.wrap = by_size(200), .replicate_below = 50});
        });
}

TEST(GpuClip, StepClippedGivesTheBitsOfClippingAndAStep) {
  run_on_gpus(1, [](World& world) {
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const double limit : {0.05, 1e6}) {
        require_equal_steps(world, dtype, limit, {.wrap = by_size(200)});
        ShardOptions offloaded{.wrap = by_size(200)};
        offloaded.offload.params = true;
        require_equal_steps(world, dtype, limit, offloaded);
      }
  });
}

// The factor of one step does not stay for the next, whatever ends it.
TEST(Clip, AStepAfterAClippedOneIsNotClipped) {
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {});
    fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
    const auto backward = [&] { model(model.module().batch(0)).backward(); };
    backward();
    optimizer.step_clipped(model.get_total_norm(), 1e-3);
    Tensor slice = model.parameters().front();
    const auto square = [&] {
      const auto& state = *optimizer.state().at(slice.unsafeGetTensorImpl());
      return static_cast<const torch::optim::AdamWParamState&>(state).exp_avg_sq().clone();
    };
    const Tensor before = square();
    model.zero_grad();
    backward();
    const Tensor gradient = slice.grad().clone();
    optimizer.step();
    require(torch::allclose(square(), before * 0.999 + gradient.square() * 0.001, 1e-4, 0),
            "the whole gradient");
  });
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
// fp32 gradients in host memory take no operator at all, others one for all of them.
TEST(Clip, TheNumberOfKernelsDoesNotGrowWithTheModel) {
  run_ranks(1, [&](World& world) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      auto plain = make_gpt2(12, 16);
      plain->to(dtype);
      auto model = fully_shard(world, plain, {});
      model(model.module().batch(0)).backward();
      const auto counts = operators_of([&] { model.clip_grad_norm_(0.1); });
      const auto times = [&](const char* name) { return counts.contains(name) ? counts.at(name) : 0; };
      std::string names;
      for (const auto& [name, count] : counts) names += name + " " + std::to_string(count) + ", ";
      require(times("aten::_foreach_norm") == (dtype == at::kDouble ? 1 : 0),
              "norms are taken together: " + names);
      require(times("aten::linalg_vector_norm") == 0 || dtype == at::kDouble, "no norm by itself: " + names);
      require(times("aten::_foreach_mul_") == 1, "gradients are scaled together");
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      const Tensor norm = model.get_total_norm();
      const int in_step = [&] {
        const auto found = operators_of([&] { optimizer.step_clipped(norm, 0.01); });
        return found.contains("aten::_foreach_mul_") ? found.at("aten::_foreach_mul_") : 0;
      }();
      require(in_step == (dtype == at::kDouble ? 1 : 0), "fp32 gradients are scaled as the step reads them");
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
