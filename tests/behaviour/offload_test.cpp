// Promise: with Offload the shards, gradients and moments of a model are in host memory, and it trains to the
// same bits.
#include <fsdp/checkpoint.h>
#include <gtest/gtest.h>

#include "behaviour/toy_device.h"
#include "support/gloo.h"
#include "support/temp_folder.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kOffloadSteps = 6;

class Offloaded : public ::testing::Test {
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "built without gloo's headers (libgloo-dev)";
  }
};

struct OffloadCase {
  int ranks;
  Strategy strategy;
  Optim optim;
  bool bf16;
  Offload offload;
};

std::vector<OffloadCase> offload_cases() {
  std::vector<OffloadCase> all;
  const Offload params{.params = true};
  for (const int ranks : {1, 2}) {
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
      for (const bool bf16 : {false, true}) all.push_back({ranks, strategy, Optim::sgd, bf16, params});
    for (const auto optim : {Optim::adamw, Optim::fused_adamw})
      for (const bool bf16 : {false, true}) all.push_back({ranks, Strategy::full_shard, optim, bf16, params});
    for (const Offload& offload : {Offload{.gradients = true}, Offload{.optimizer = true},
                                   Offload{.gradients = true, .optimizer = true},
                                   Offload{.params = true, .gradients = true, .optimizer = true}})
      all.push_back({ranks, Strategy::full_shard, Optim::fused_adamw, true, offload});
  }
  return all;
}

std::string offload_name(const ::testing::TestParamInfo<OffloadCase>& info) {
  const auto& [ranks, strategy, optim, bf16, offload] = info.param;
  return "W" + std::to_string(ranks) + (bf16 ? "_bf16_" : "_fp32_") + std::to_string(static_cast<int>(strategy)) +
         "_" + std::to_string(static_cast<int>(optim)) + (offload.params ? "_params" : "") +
         (offload.gradients ? "_gradients" : "") + (offload.optimizer ? "_optimizer" : "");
}

class OffloadedTraining : public Offloaded, public ::testing::WithParamInterface<OffloadCase> {};

TEST_P(OffloadedTraining, HasTheBitsOfTheCpu) {
  const OffloadCase& one = GetParam();
  on_toy_ranks(one.ranks, [&](World& world) {
    const State wanted = train_plain(*make_learner("mlp"), one.ranks, kOffloadSteps, one.optim,
                                     one.bf16 ? at::kBFloat16 : at::kFloat);
    auto model = fully_shard(world, make_learner("mlp"),
                             {.wrap = by_size(200),
                              .strategy = one.strategy,
                              .precision = one.bf16 ? bf16() : fp32(),
                              .offload = one.offload,
                              .comm = kToyComm});
    train_sharded(model, world, kOffloadSteps, one.optim);
    for (const at::Tensor& slice : model.parameters())
      require(slice.is_cpu() == one.offload.params, "a slice on " + slice.device().str());
    State found = state_of(model);
    for (auto& [name, value] : found) {
      require(value.device() == world.device(), name + " is computed with on " + value.device().str());
      value = value.cpu();
    }
    require_same(found, wanted);
    require(model.memory_stats().host_bytes > 0, "no host memory");
    require((model.memory_stats().parameter_bytes == 0) == one.offload.params, "shards on the device");
  });
}

INSTANTIATE_TEST_SUITE_P(Toy, OffloadedTraining, ::testing::ValuesIn(offload_cases()), offload_name);

}  // namespace
}  // namespace fsdp::testing
