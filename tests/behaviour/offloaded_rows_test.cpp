// Promise: parameters in host memory train to the same bits on a mesh of rows and with reshard groups.
#include <gtest/gtest.h>

#include "behaviour/offloaded.h"

namespace fsdp::testing {
namespace {

struct RowsCase {
  const char* name;
  Strategy strategy;
  int shard_size;
  int reshard_group;
};

const std::vector<RowsCase> kRowsCases = {
    {"Hybrid", Strategy::hybrid_shard, 2, 0},
    {"HybridZero2", Strategy::hybrid_shard_zero2, 2, 0},
    {"ReshardGroup", Strategy::full_shard, 0, 2},
    {"HybridWithReshardGroup", Strategy::hybrid_shard, 4, 2},
};

class OffloadedRows : public Offloaded, public ::testing::WithParamInterface<RowsCase> {};

ShardOptions rows_options(const RowsCase& one, const Offload& offload, bool narrow) {
  return {.wrap = by_size(200),
          .strategy = one.strategy,
          .precision = narrow ? bf16() : fp32(),
          .reshard_group = one.reshard_group,
          .shard_size = one.shard_size,
          .offload = offload,
          .comm = kToyComm};
}

// Accumulates, clips and evaluates.
void train_rows(Sharded<Learner>& model, torch::optim::Optimizer& optimizer, const World& world) {
  for (int64_t step = 0; step < kOffloadSteps; ++step) {
    if (step % 3 == 1) {
      const auto kept = model.no_sync();
      offload_loss(model, world, 3 * step).backward();
    }
    offload_loss(model, world, 3 * step + 1).backward();
    model.clip_grad_norm_(step % 2 == 0 ? 1e-2 : 1e3);
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    offload_loss(model, world, 0);
  }
}

TEST_P(OffloadedRows, HaveTheBitsOfTheDevice) {
  const RowsCase& one = GetParam();
  on_toy_ranks(4, [&](World& world) {
    for (const bool narrow : {false, true})
      for (const auto optim : {Optim::fused_adamw, Optim::sgd}) {
        const State wanted = after(world, train_rows, rows_options(one, {}, narrow), optim);
        require_same(after(world, train_rows, rows_options(one, {.params = true}, narrow), optim), wanted);
      }
  });
}

// Against updates after backward, by the same kernel of the host.
TEST_P(OffloadedRows, StepInBackward) {
  const RowsCase& one = GetParam();
  on_toy_ranks(4, [&](World& world) {
    const auto train = [&](bool in_backward) {
      auto model = fully_shard(world, make_learner("mlp"), rows_options(one, {.params = true}, true));
      fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
      if (in_backward) optimizer.step_in_backward(model);
      for (int64_t step = 0; step < kOffloadSteps; ++step) {
        offload_loss(model, world, step).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const at::Tensor& slice : model.parameters())
        require(slice.is_cpu(), "a slice on " + slice.device().str());
      return host_state(state_of(model));
    };
    require_same(train(true), train(false));
  });
}

INSTANTIATE_TEST_SUITE_P(Toy, OffloadedRows, ::testing::ValuesIn(kRowsCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::testing
