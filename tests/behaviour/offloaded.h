// Models whose parameters are in host memory, on the toy device.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "behaviour/toy_device.h"
#include "support/gloo.h"
#include "support/twins.h"

namespace fsdp::testing {

constexpr int kOffloadSteps = 6;

class Offloaded : public ::testing::Test {
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  }
};

inline ShardOptions offload_options(bool offloaded, bool narrow = true) {
  return {.wrap = by_size(200),
          .precision = narrow ? bf16() : fp32(),
          .offload = {.params = offloaded},
          .comm = kToyComm};
}

inline State host_state(State state) {
  for (auto& [name, value] : state) value = value.cpu();
  return state;
}

using OffloadProgram =
    std::function<void(Sharded<Learner>& model, torch::optim::Optimizer& optimizer, const World& world)>;

// What a program leaves of a model, with its parameters on the device or in host memory.
inline State after(const World& world, const OffloadProgram& program, const ShardOptions& options,
                   Optim optim = Optim::fused_adamw) {
  auto model = fully_shard(world, make_learner("mlp"), options);
  const auto optimizer = make_optimizer(optim, model.parameters());
  program(model, *optimizer, world);
  return host_state(state_of(model));
}

inline at::Tensor offload_loss(Sharded<Learner>& model, const World& world, int64_t index) {
  return model(make_learner("mlp")->batch_on(index * world.size() + world.rank(), world.device()));
}

}  // namespace fsdp::testing
