// Promise: scopes can be moved, of one module or the whole model; gradients kept back are reduced when asked.
#include <gmock/gmock.h>

#include <optional>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

int64_t reductions_of(const ShardedModel& model) { return model.memory_stats().reduce_scatters; }

std::vector<Tensor> gradients_of(const ShardedModel& model) {
  std::vector<Tensor> all;
  for (const Tensor& slice : model.parameters()) all.push_back(slice.grad().clone());
  return all;
}

void require_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) require(a[i].equal(b[i]), "tensor " + std::to_string(i));
}

// The usual accumulation loop: an optional scope around all microbatches but the last.
TEST(Scopes, AnOptionalNoSyncKeepsGradientsBack) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    for (int step = 0; step < 3; ++step) {
      const int64_t before = reductions_of(model);
      std::optional<NoSync> scope;
      for (int i = 0; i < 4; ++i) {
        if (i < 3) {
          if (!scope) scope = model.no_sync();
        } else {
          scope.reset();
        }
        loss_of(model(net_batch(4 * step + i))).backward();
        require((reductions_of(model) - before > 0) == (i == 3), "microbatch " + std::to_string(i));
      }
      model.zero_grad();
    }
  });
}

TEST(Scopes, OneThatWasMovedFromEndsNothing) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    const auto reduces = [&] {
      const int64_t before = reductions_of(model);
      loss_of(model(net_batch(1))).backward();
      return reductions_of(model) > before;
    };
    std::optional<NoSync> outer;
    {
      NoSync inner = model.no_sync();
      outer = std::move(inner);
    }
    require(!reduces(), "the scope went on in `outer`");
    outer = model.no_sync();  // begins before the old one ends
    require(!reduces(), "assigned over");
    outer.reset();
    require(reduces(), "and is over");

    std::optional<FullParams> whole = model.full_params();
    FullParams moved = std::move(*whole);
    whole.reset();
    require(model.module().in->weight.sum().isfinite().item<bool>(), "readable in the scope that was moved");
    moved = model.full_params(FullParamsOptions{.module = "out"});
    require(model.module().out->weight.numel() > 0, "and in the one assigned to it");
  });
}

TEST(Scopes, SynchronizeGradientsReducesWhatWasKeptBack) {
  run_ranks(3, [](World& world) {
    for (const bool shared : {true, false}) {
      const auto make = [&] {
        ShardOptions options = sharded_by(by_type<BlockImpl>());
        options.share_shards = shared;
        return fully_shard(world, make_same_net(), options);
      };
      auto by_hand = make(), by_backward = make();
      for (int step = 0; step < 3; ++step) {
        const auto backwards = [&](auto& model) {
          const auto scope = model.no_sync();
          for (int i = 0; i < 2; ++i) loss_of(model(net_batch(10 * step + i + world.rank()))).backward();
        };
        backwards(by_hand);
        by_hand.synchronize_gradients();
        backwards(by_backward);
        (by_backward(net_batch(0)) * 0).sum().backward();  // adds zeros, and reduces
        require_equal(gradients_of(by_hand), gradients_of(by_backward));
        by_hand.zero_grad();
        by_backward.zero_grad();
      }
      by_hand.synchronize_gradients();  // nothing was kept back
      for (const Tensor& slice : by_hand.parameters()) require(!slice.grad().defined(), "no gradient");
      const auto scope = by_hand.no_sync();
      require_words(refusal([&] { by_hand.synchronize_gradients(); }),
                    "inside no_sync(); end that scope first");
    }
  });
}

// There every backward is a microbatch: a call would be taken for one.
TEST(Scopes, SynchronizeGradientsIsRefusedInReproducibleMode) {
  run_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.reproducible = Reproducible{.microbatches = 4};
    auto model = fully_shard(world, make_same_net(), options);
    loss_of(model(net_batch(world.rank()))).backward();
    require_words(refusal([&] { model.synchronize_gradients(); }), "in reproducible mode");
    loss_of(model(net_batch(2 + world.rank()))).backward();  // and the step goes on
    require(model.parameters().front().grad().defined(), "the step is complete");
  });
}

TEST(Scopes, SynchronizeGradientsTellsOnGradient) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    int told = 0;
    model.on_gradient([&](const std::string&, Tensor&) { ++told; });
    {
      const auto scope = model.no_sync();
      loss_of(model(net_batch(1))).backward();
    }
    require(told == 0, "nothing is reduced yet");
    model.synchronize_gradients();
    require(told == static_cast<int>(model.parameters().size()), std::to_string(told) + " were told");
  });
}

TEST(Scopes, KeepGatheredOfOneModuleKeepsItsUnitsOnly) {
  run_ranks(2, [](World& world) {
    ShardOptions options = sharded_by(by_type<BlockImpl>());
    options.share_shards = false;
    auto model = fully_shard(world, make_same_net(), options);
    const auto gathers = [&] {
      std::map<std::string, int64_t> all;
      for (const UnitCounts& unit : model.unit_counts()) all[unit.name] = unit.gathers;
      return all;
    };
    {
      const auto kept = model.keep_gathered({.module = "block1"});
      for (int i = 0; i < 2; ++i) loss_of(model(net_batch(i))).backward();
      auto before = gathers();
      loss_of(model(net_batch(2))).backward();
      for (const auto& [unit, count] : gathers())
        require((count == before[unit]) == (unit == "block1"), "unit '" + unit + "'");
    }
    auto before = gathers();
    loss_of(model(net_batch(2))).backward();
    require(gathers()["block1"] > before["block1"], "it is gathered again after the scope");
    require_words(refusal([&] { (void)model.keep_gathered({.module = "blok1"}); }),
                  "no parameter lies under 'blok1'; near names: block1");
  });
}

}  // namespace
}  // namespace fsdp::testing
