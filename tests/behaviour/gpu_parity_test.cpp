// Promise: on GPUs a sharded model trains like the plain one, in fp32 and in bf16 over an fp32 shard.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

constexpr int kSteps = 10;

struct GpuCase {
  std::string learner;
  int ranks;
  Strategy strategy;
  bool bf16;
};

void PrintTo(const GpuCase& one, std::ostream* out) {
  *out << one.learner << " on " << one.ranks << " ranks";
}

std::string test_name(const ::testing::TestParamInfo<GpuCase>& info) {
  const GpuCase& one = info.param;
  return one.learner + "_W" + std::to_string(one.ranks) + (one.bf16 ? "_bf16" : "_fp32") + "_" +
         std::to_string(static_cast<int>(one.strategy));
}

class GpuParity : public ::testing::TestWithParam<GpuCase> {};

// NCCL sums in its own order and some kernels add atomically: equal to rounding, not to the bit. In bf16 a
// gradient that rounds the other way moves a weight by up to a learning rate's part of it.
TEST_P(GpuParity, FollowsThePlainLoop) {
  const GpuCase& one = GetParam();
  run_processes(
      one.ranks,
      [&](World& world) {
        ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
        auto plain = make_learner(one.learner);
        plain->to(world.device());
        const auto compute = one.bf16 ? at::kBFloat16 : at::kFloat;
        const State wanted = train_plain(*plain, one.ranks, kSteps, Optim::sgd, compute);
        auto model = fully_shard(
            world, make_learner(one.learner),
            {.wrap = by_size(200), .strategy = one.strategy, .precision = one.bf16 ? bf16() : fp32()});
        train_sharded(model, world, kSteps, Optim::sgd);
        const double found = drift(state_of(model), wanted);
        require(found <= (one.bf16 ? 2e-3 : 1e-5), "drift " + std::to_string(found));
      },
      c10::Device(c10::kCUDA, 0));
}

std::vector<GpuCase> gpu_cases() {
  std::vector<GpuCase> cases;
  for (const char* learner : {"mlp", "gpt2", "llama"})
    for (const int ranks : {1, 2, 4})
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
        for (const bool bf16 : {false, true})
          if (strategy == Strategy::full_shard || std::string(learner) == "gpt2")
            cases.push_back({learner, ranks, strategy, bf16});
  for (const char* learner : {"convnet", "lstm", "frozen", "llama_tied"})
    for (const int ranks : {1, 2}) cases.push_back({learner, ranks, Strategy::full_shard, false});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GpuParity, ::testing::ValuesIn(gpu_cases()), test_name);

}  // namespace
}  // namespace fsdp::testing
