// Promise: to() of a sharded model says which option moves or converts it, and passes where nothing changes.
#include <gtest/gtest.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

void train_once(Sharded<NetImpl>& model, const World& world) {
  loss_of(model(torch::full({2, 6}, 1.0 + world.rank()))).backward();
}

TEST(MisuseTo, AnotherDeviceIsRefused) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_net());
      for (const auto& device :
           {c10::Device(c10::kCUDA), c10::Device(c10::kCUDA, 1), c10::Device(c10::kMeta)}) {
        const std::string said = refusal([&] { model.to(device); });
        require_words(said, "to(" + device.str() + "): the model is sharded on cpu");
        require_words(said, "InitOptions::device");
        require_words(refusal([&] { model.to(device, at::kFloat); }), "InitOptions::device");
      }
      train_once(model, world);  // and goes on as before
    });
}

TEST(MisuseTo, AnotherDtypeIsRefused) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_net(), {.precision = bf16()});
      for (const auto type : {at::kBFloat16, at::kDouble, at::kHalf}) {
        const std::string said = refusal([&] { model.to(type); });
        require_words(said, "is Float and cannot be converted");
        require_words(said, "ShardOptions::precision");
        require_words(said, "Precision::master");
        require_words(refusal([&] { model.to(world.device(), type); }), "Precision::master");
      }
      train_once(model, world);
    });
}

TEST(MisuseTo, WhatChangesNothingPasses) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](World& world) {
      auto model = fully_shard(world, make_net());
      model.to(at::kCPU);
      model.to(world.device());
      model.to(at::kFloat);
      model.to(at::kCPU, at::kFloat, /*non_blocking=*/true);
      train_once(model, world);
      auto half = fully_shard(world, make_net(), {.precision = bf16_true()});
      half.to(at::kBFloat16);
      require_words(refusal([&] { half.to(at::kFloat); }), "is BFloat16 and cannot be converted");
    });
}

}  // namespace
}  // namespace fsdp::testing
