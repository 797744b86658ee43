// Promise: on GPUs a sharded model trains like the plain one, in fp32 and in bf16 over an fp32 shard.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kGpuParitySteps = 10;

struct GpuCase {
  std::string learner;
  int ranks;
  Strategy strategy;
  bool bf16;
  int group = 0;  // reshard_group
};

void PrintTo(const GpuCase& one, std::ostream* out) {
  *out << one.learner << " on " << one.ranks << " ranks";
}

std::string gpu_parity_test_name(const ::testing::TestParamInfo<GpuCase>& info) {
  const GpuCase& one = info.param;
  return one.learner + "_W" + std::to_string(one.ranks) + (one.bf16 ? "_bf16" : "_fp32") + "_" +
         std::to_string(static_cast<int>(one.strategy)) +
         (one.group > 0 ? "_group" + std::to_string(one.group) : "");
}

class GpuParity : public ::testing::TestWithParam<GpuCase> {};

// NCCL sums in its own order and some kernels add atomically: equal to rounding, not to the bit. In bf16 a
// gradient that rounds the other way moves a weight by up to a learning rate's part of it.
TEST_P(GpuParity, FollowsThePlainLoop) {
  const GpuCase& one = GetParam();
  run_on_gpus(one.ranks, [&](World& world) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    auto plain = make_learner(one.learner);
    plain->to(world.device());
    const auto compute = one.bf16 ? at::kBFloat16 : at::kFloat;
    const State wanted = train_plain(*plain, one.ranks, kGpuParitySteps, Optim::sgd, compute);
    auto model = fully_shard(world, make_learner(one.learner),
                             {.wrap = by_size(200),
                              .strategy = one.strategy,
                              .precision = one.bf16 ? bf16() : fp32(),
                              .reshard_group = one.group,
                              .shard_size = one.strategy == Strategy::hybrid_shard ? 2 : 0});
    train_sharded(model, world, kGpuParitySteps, Optim::sgd);
    const double found = drift(state_of(model), wanted);
    require(found <= (one.bf16 ? 2e-3 : 1e-5), "drift " + std::to_string(found));
  });
}

std::vector<GpuCase> gpu_cases() {
  std::vector<GpuCase> cases;
  for (const char* learner : {"mlp", "gpt2", "llama"})
    for (const int ranks : {1, 2, 4})
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
        for (const bool bf16 : {false, true})
          if (strategy == Strategy::full_shard || std::string(learner) == "gpt2")
            cases.push_back({learner, ranks, strategy, bf16});
  for (const bool bf16 : {false, true}) {
    cases.push_back({"gpt2", 4, Strategy::hybrid_shard, bf16});
    cases.push_back({"gpt2", 4, Strategy::full_shard, bf16, /*group=*/2});
  }
  for (const char* learner : {"convnet", "lstm", "lstm_in_one_piece", "frozen", "llama_tied"})
    for (const int ranks : {1, 2}) cases.push_back({learner, ranks, Strategy::full_shard, false});
  return cases;
}

// Blocks that run beside each other on streams of their own, all joined at the end only.
struct Branching : Learner {
  static constexpr int kBranches = 6;
  Branching() {
    const SeededHere seeded(5);
    for (int i = 0; i < kBranches; ++i)
      branches.push_back(register_module("branch" + std::to_string(i), torch::nn::Linear(64, 64)));
  }
  std::vector<at::Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({32, 64}, gen)};
  }
  at::Tensor forward(const std::vector<at::Tensor>& batch) override {
    const at::Tensor& x = batch[0];
    const c10::impl::VirtualGuardImpl device(x.device().type());
    const c10::Stream main = device.getStream(x.device());
    c10::Event begun(x.device().type());
    begun.record(main);
    at::Tensor total = branches[0](x).square().sum() + branches[1](x).square().sum();
    std::vector<at::Tensor> parts;
    for (int i = 0; i < kBranches; ++i) {
      const c10::Stream side = streams.size() > static_cast<size_t>(i)
                                   ? streams[static_cast<size_t>(i)]
                                   : streams.emplace_back(device.getStreamFromGlobalPool(x.device()));
      begun.block(side);
      const c10::StreamGuard guard(side);
      at::Tensor slow = torch::ones({2048, 2048}, x.options());
      for (int k = 0; k < 20; ++k)
        slow = slow.matmul(slow) * 1e-4;  // the unit is read long after it was asked for
      parts.push_back((branches[static_cast<size_t>(i)](x) + 0 * slow[0][0].detach()).square().sum());
      c10::Event ended(x.device().type());
      ended.record(side);
      ended.block(main);
    }
    for (const at::Tensor& part : parts) total = total + part;
    return total / 1000;
  }
  std::vector<torch::nn::Linear> branches;
  std::vector<c10::Stream> streams;
};

TEST(GpuParityStreams, AUnitMayBeReadOnSeveralStreams) {
  for (const int ranks : {1, 2})
    run_on_gpus(ranks, [&](World& world) {
      Branching plain;
      plain.to(world.device());
      const State wanted = train_plain(plain, ranks, kGpuParitySteps, Optim::sgd, at::kBFloat16);
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(std::make_shared<Branching>()),
                               {.wrap = by_type_name({"Linear"}), .precision = bf16()});
      train_sharded(model, world, kGpuParitySteps, Optim::sgd);
      const double found = drift(state_of(model), wanted);
      require(found <= 2e-3, "drift " + std::to_string(found));
    });
}

INSTANTIATE_TEST_SUITE_P(All, GpuParity, ::testing::ValuesIn(gpu_cases()), gpu_parity_test_name);

}  // namespace
}  // namespace fsdp::testing
