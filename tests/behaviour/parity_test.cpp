// Promise: a sharded model trains to the same bits as the plain loop over the same batches.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kParitySteps = 20;

struct ParityCase {
  std::string learner;
  int ranks;
  Strategy strategy;
  Optim optim;
  bool shares;  // shards lie side by side, or are gathered into slots
};

const char* name_of(Strategy strategy) {
  return strategy == Strategy::full_shard      ? "FullShard"
         : strategy == Strategy::shard_grad_op ? "ShardGradOp"
                                               : "NoShard";
}

const char* name_of(Optim optim) {
  return optim == Optim::sgd ? "Sgd" : optim == Optim::adamw ? "AdamW" : "FusedAdamW";
}

void PrintTo(const ParityCase& one, std::ostream* out) {
  *out << one.learner << " on " << one.ranks << " ranks";
}

std::string parity_test_name(const ::testing::TestParamInfo<ParityCase>& info) {
  return info.param.learner + "_W" + std::to_string(info.param.ranks) + "_" + name_of(info.param.strategy) +
         "_" + name_of(info.param.optim) + (info.param.shares ? "" : "_Slots");
}

class Parity : public ::testing::TestWithParam<ParityCase> {};

TEST_P(Parity, BitsEqualThePlainLoop) {
  const ParityCase& one = GetParam();
  const auto plain = make_learner(one.learner);
  const State wanted = train_plain(*plain, one.ranks, kParitySteps, one.optim);
  run_ranks(one.ranks, [&](World& world) {
    auto model = fully_shard(world, make_learner(one.learner),
                             {.wrap = by_size(200), .strategy = one.strategy, .share_shards = one.shares});
    train_sharded(model, world, kParitySteps, one.optim);
    require_same(state_of(model), wanted);
  });
}

// All 360 of them in the long tests, every seventh otherwise.
std::vector<ParityCase> parity_cases() {
  const int every = repeats(7, 1);
  int number = 0;
  std::vector<ParityCase> cases;
  for (const auto& learner : learners())
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
        for (const auto optim : {Optim::sgd, Optim::adamw, Optim::fused_adamw})
          if (const int i = number++; i % every == 0)
            cases.push_back({learner.name, ranks, strategy, optim, i % 2 == 0});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Parity, ::testing::ValuesIn(parity_cases()), parity_test_name);

}  // namespace
}  // namespace fsdp::testing
