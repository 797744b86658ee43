// Promise: on a mesh of rows, parameters are split in the row and copied over the rows, and train to the same
// bits as the plain loop over all ranks' batches.
#include <gtest/gtest.h>

#include "launch/world_state.h"
#include "support/gloo.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kHybridSteps = 20;

struct MeshCase {
  std::string learner;
  int rows, row;  // ranks of a row
  Strategy strategy;
  Optim optim;
};

void PrintTo(const MeshCase& one, std::ostream* out) {
  *out << one.learner << " on " << one.rows << " rows of " << one.row;
}

std::string hybrid_test_name(const ::testing::TestParamInfo<MeshCase>& info) {
  const MeshCase& one = info.param;
  return one.learner + "_" + std::to_string(one.rows) + "x" + std::to_string(one.row) +
         (one.strategy == Strategy::hybrid_shard ? "_Hybrid" : "_HybridZero2") +
         (one.optim == Optim::sgd ? "_Sgd" : "_FusedAdamW");
}

class Hybrid : public ::testing::TestWithParam<MeshCase> {};

TEST_P(Hybrid, BitsEqualThePlainLoop) {
  const MeshCase& one = GetParam();
  const int ranks = one.rows * one.row;
  const State wanted = train_plain(*make_learner(one.learner), ranks, kHybridSteps, one.optim);
  run_ranks(ranks, [&](World& world) {
    auto model = fully_shard(world, make_learner(one.learner),
                             {.wrap = by_size(200), .strategy = one.strategy, .shard_size = one.row});
    train_sharded(model, world, kHybridSteps, one.optim);
    require_same(state_of(model), wanted);
  });
}

std::vector<MeshCase> mesh_cases() {
  const int every = repeats(5, 1);
  int number = 0;
  std::vector<MeshCase> cases;
  for (const char* learner : {"mlp", "convnet", "lstm", "gpt2", "llama", "frozen"})
    for (const auto& [rows, row] : std::vector<std::pair<int, int>>{{2, 2}, {2, 4}, {4, 2}, {1, 4}, {4, 1}})
      for (const auto strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2})
        for (const auto optim : {Optim::sgd, Optim::fused_adamw})
          if (number++ % every == 0) cases.push_back({learner, rows, row, strategy, optim});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Hybrid, ::testing::ValuesIn(mesh_cases()), hybrid_test_name);

TEST(HybridMesh, ARankHoldsItsPartOfTheRow) {
  run_ranks(4, [](World& world) {
    auto model = fully_shard(world, make_gpt2(3, 16),
                             {.wrap = by_size(200), .strategy = Strategy::hybrid_shard, .shard_size = 2});
    const double ratio = model.local_sharding_ratio();
    require(ratio > 0.4 && ratio < 0.6, "holds " + std::to_string(ratio));
    const auto info = model.parameter_info("net.transformer.wte.weight");
    require(info.shards.size() == 2, "shards");
    for (const auto& shard : info.shards)
      require(shard.rank / 2 == world.rank() / 2 && shard.is_local == (shard.rank == world.rank()), "owner");
    require(model.describe().find("4 ranks in rows of 2") != std::string::npos, model.describe());
  });
}

TEST(HybridMesh, ClipsByTheNormOfOneCopy) {
  run_ranks(4, [](World& world) {
    const auto norm = [&](const ShardOptions& options) {
      auto model = fully_shard(world, make_learner("gpt2"), options);
      model(model.module().batch(world.rank())).backward();
      return model.clip_grad_norm_(0.1).item<double>();
    };
    const double wanted = norm({});
    const double found = norm({.strategy = Strategy::hybrid_shard, .shard_size = 2});
    require(std::abs(found - wanted) <= 1e-6 * wanted,
            std::to_string(found) + ", not " + std::to_string(wanted));
  });
}

TEST(HybridMesh, AccumulatesAndKeepsBack) {
  run_ranks(4, [](World& world) {
    const auto train = [&](const ShardOptions& options) {
      auto model = fully_shard(world, make_learner("gpt2"), options);
      torch::optim::SGD optimizer(model.parameters(), 0.05);
      for (int step = 0; step < 4; ++step) {
        {
          const auto kept = model.no_sync();
          model(model.module().batch(8 * step + world.rank())).backward();
        }
        model(model.module().batch(8 * step + 4 + world.rank())).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return state_of(model);
    };
    const State wanted = train({.wrap = by_size(200)});
    require_same(train({.wrap = by_size(200), .strategy = Strategy::hybrid_shard, .shard_size = 2}), wanted);
  });
}

// Gives the ranks of this thread's world other hosts: one letter per rank.
void place_on(World& world, const std::string& hosts) {
  for (Peer& peer : world.state().peers) {
    peer.host_id += hosts[static_cast<size_t>(peer.rank)];
    peer.hostname = std::string("node-") + hosts[static_cast<size_t>(peer.rank)];
  }
}

const CommOptions kOverGloo{.backend = BackendKind::c10d, .c10d = make_gloo};

// Ranks that go round two hosts, as under srun --distribution=cyclic.
TEST(HybridMesh, RowsFollowHostsWhateverTheOrderOfRanks) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  run_ranks(4, [](World& world) {
    const auto train = [&](const ShardOptions& options) {
      auto model = fully_shard(world, make_learner("gpt2"), options);
      train_sharded(model, world, 5, Optim::sgd);
      return state_of(model);
    };
    const State wanted = train({.wrap = by_size(200), .comm = kOverGloo});
    place_on(world, "abab");
    const ShardOptions options{.wrap = by_size(200), .strategy = Strategy::hybrid_shard, .comm = kOverGloo};
    auto model = fully_shard(world, make_gpt2(3, 16), options);
    const auto info = model.parameter_info("net.transformer.wte.weight");
    require(info.shards.size() == 2, "rows of two");
    for (const auto& shard : info.shards)
      require(
          shard.rank % 2 == world.rank() % 2 && shard.is_local == (shard.rank == world.rank()),
          "rank " + std::to_string(shard.rank) + " is in the row of rank " + std::to_string(world.rank()));
    ShardOptions checked = options;
    checked.check_replicas_every = 2;  // replicas are found by their place in the row
    const State found = train(checked);
    for (const auto& [name, value] : wanted)
      require(at::allclose(found.at(name), value, 1e-5, 1e-6), name + " trains as without rows");
    auto whole = model.full_params({.rank0_only = true});  // rank 0 asks the ranks of its own row
  });
}

TEST(HybridMesh, ARowAcrossHostsIsWarnedOfOnceByRankZero) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  ::testing::internal::CaptureStderr();
  run_ranks(4, [](World& world) {
    place_on(world, "aaab");
    for (int i = 0; i < 2; ++i)
      const auto model =
          fully_shard(world, make_learner("mlp"),
                      {.strategy = Strategy::hybrid_shard, .shard_size = 2, .comm = kOverGloo});
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string words = "some row has ranks of several hosts";
  const size_t first = said.find(words);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(words, first + 1), std::string::npos) << said;
}

// As in pods of one GPU each.
TEST(HybridMesh, RanksAloneOnTheirHostsAreToldThatNothingIsSharded) {
  if (!gloo_available()) GTEST_SKIP() << "missing package: libgloo-dev";
  const auto said = [](const ShardOptions& options) {
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](World& world) {
      place_on(world, "ab");
      fully_shard(world, make_learner("mlp"), options);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string words = "HYBRID_SHARD shards nothing here";
  EXPECT_NE(said({.strategy = Strategy::hybrid_shard, .comm = kOverGloo}).find(words), std::string::npos);
  for (const ShardOptions& meant : {ShardOptions{.strategy = Strategy::hybrid_shard, .shard_size = 2},
                                    ShardOptions{.strategy = Strategy::hybrid_shard, .shard_size = 1},
                                    ShardOptions{.strategy = Strategy::full_shard}}) {
    ShardOptions options = meant;
    options.comm = kOverGloo;
    EXPECT_EQ(said(options).find(words), std::string::npos);
  }
}

TEST(HybridMesh, UnequalHostsAndReproducibleRoundRobinAreRefusedOnAllRanks) {
  run_ranks(4, [](World& world) {
    const auto said = [&](const ShardOptions& options) {
      return refusal([&] { const auto model = fully_shard(world, make_learner("mlp"), options); });
    };
    place_on(world, "aaab");
    require_words(said({.strategy = Strategy::hybrid_shard}), "3 on node-a, 1 on node-b");
  });
  run_ranks(4, [](World& world) {
    place_on(world, "abab");
    require_words(refusal([&] {
                    const auto model = fully_shard(world, make_learner("mlp"),
                                                   {.strategy = Strategy::hybrid_shard,
                                                    .reproducible = Reproducible{.microbatches = 4}});
                  }),
                  "Number the ranks host by host");
  });
}

TEST(HybridMesh, RowsThatDoNotFitAreRefused) {
  run_ranks(4, [](World& world) {
    const auto said = [&](const ShardOptions& options) {
      return refusal([&] { const auto model = fully_shard(world, make_learner("mlp"), options); });
    };
    const auto odd = said({.strategy = Strategy::hybrid_shard, .shard_size = 3});
    require(odd.find("4 ranks cannot be rows of 3") != std::string::npos, odd);
    const auto plain = said({.shard_size = 2});
    require(plain.find("without a hybrid strategy") != std::string::npos, plain);
    require(parse_strategy("HYBRID_SHARD_ZERO2") == Strategy::hybrid_shard_zero2, "parsed");
  });
}

}  // namespace
}  // namespace fsdp::testing
