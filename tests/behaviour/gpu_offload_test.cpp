// Promise: on a GPU, shards in host memory train to the bits of shards on the device whose gradients are
// brought to the host and whose values are brought back, with the same optimizer on the host.
#include <gtest/gtest.h>

#include "support/learners.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kGpuOffloadSteps = 5;

// How units lie on ranks.
struct GpuRows {
  Strategy strategy = Strategy::full_shard;
  int shard_size = 0;
  int reshard_group = 0;
};

ShardOptions gpu_offload_options(bool offloaded, bool narrow, const GpuRows& rows) {
  return {.wrap = by_size(200),
          .strategy = rows.strategy,
          .precision = narrow ? bf16() : fp32(),
          .reshard_group = rows.reshard_group,
          .shard_size = rows.shard_size,
          .offload = {.params = offloaded}};
}

State on_host_now(const Sharded<Learner>& model) {
  State state;
  for (const auto& item : model.named_parameters()) state[item.key()] = item.value().detach().cpu().clone();
  return state;
}

at::Tensor gpu_offload_loss(Sharded<Learner>& model, const World& world, int64_t step) {
  return model(model.module().batch_on(step * world.size() + world.rank(), world.device()));
}

State optimized_by_hand(const World& world, bool narrow, const GpuRows& rows) {
  auto model = fully_shard(world, make_learner("mlp"), gpu_offload_options(false, narrow, rows));
  std::vector<at::Tensor> slices = model.parameters(), masters;
  for (const at::Tensor& slice : slices) masters.push_back(slice.detach().cpu().clone().requires_grad_());
  fsdp::AdamW optimizer(masters, fsdp::AdamWOptions(1e-2));
  for (int64_t step = 0; step < kGpuOffloadSteps; ++step) {
    gpu_offload_loss(model, world, step).backward();
    for (size_t i = 0; i < slices.size(); ++i) masters[i].mutable_grad() = slices[i].grad().cpu();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < slices.size(); ++i) slices[i].detach().copy_(masters[i]);
    model.zero_grad();
  }
  return on_host_now(model);
}

State offloaded(const World& world, bool narrow, bool in_backward, const GpuRows& rows) {
  auto model = fully_shard(world, make_learner("mlp"), gpu_offload_options(true, narrow, rows));
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
  if (in_backward) optimizer.step_in_backward(model);
  for (int64_t step = 0; step < kGpuOffloadSteps; ++step) {
    gpu_offload_loss(model, world, step).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const at::Tensor& slice : model.parameters()) require(slice.is_cpu(), "shards are on the host");
  return on_host_now(model);
}

void require_same_offloaded(const World& world, const GpuRows& rows) {
  for (const bool narrow : {false, true}) {
    const State wanted = optimized_by_hand(world, narrow, rows);
    require_same(offloaded(world, narrow, false, rows), wanted);
    require_same(offloaded(world, narrow, true, rows), wanted);
  }
}

TEST(GpuOffload, HasTheBitsOfTheSameOptimizerOnTheHost) {
  for (const int ranks : {1, 2}) run_on_gpus(ranks, [](World& world) { require_same_offloaded(world, {}); });
}

TEST(GpuOffload, OnAMeshOfRowsAndWithReshardGroups) {
  run_on_gpus(4, [](World& world) {
    require_same_offloaded(world, {.strategy = Strategy::hybrid_shard, .shard_size = 2});
    require_same_offloaded(world, {.strategy = Strategy::hybrid_shard_zero2, .shard_size = 2});
    require_same_offloaded(world, {.reshard_group = 2});
  });
}

}  // namespace
}  // namespace fsdp::testing
