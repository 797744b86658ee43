// plan_sharding(): the units and bytes of fully_shard(), computed without ranks.
#include <fsdp/sharding_plan.h>

#include <algorithm>
#include <numeric>

#include "shard/choose_unit.h"
#include "shard/module_walk.h"
#include "shard/wrap.h"

namespace fsdp {

namespace {

using namespace detail;

int row_ranks(const PlannedRanks& ranks, const ShardOptions& options) {
  const bool hybrid =
      options.strategy == Strategy::hybrid_shard || options.strategy == Strategy::hybrid_shard_zero2;
  if (!hybrid) return ranks.ranks;
  const int row = options.shard_size > 0     ? options.shard_size
                  : ranks.ranks_per_host > 0 ? ranks.ranks_per_host
                                             : ranks.ranks;
  TORCH_CHECK(ranks.ranks % row == 0, "fsdp: rows of ", row, " ranks do not divide ", ranks.ranks, " ranks");
  return row;
}

// With one rank, gradients in the right type stay where autograd put them: without padding, and in no buffer.
bool stays_with_autograd(const UnitSpec& unit, const RegionSpec& region) {
  return region.compute == region.gradient && !region.gradient_on_host && unit.divide_by == 0;
}

UnitPlan to_plan(const UnitSpec& spec, const UnitDecl& decl, bool alone) {
  UnitPlan plan{.name = decl.name,
                .parameters = decl.numel(),
                .shard_bytes = spec.shard_bytes(),
                .slot_bytes = spec.slot_bytes()};
  for (const RegionSpec& region : spec.regions) {
    if (alone && stays_with_autograd(spec, region)) continue;
    plan.gradient_bytes += region.gradient_bytes();
    plan.buffer_bytes += region.buffer_bytes();
  }
  for (const Placement& param : spec.layout.params) {
    const RegionSpec& region = spec.regions[static_cast<size_t>(param.region)];
    if (alone && region.layout.trainable && stays_with_autograd(spec, region))
      plan.gradient_bytes += param.numel * region.gradient.bytes;
  }
  return plan;
}

}  // namespace

int64_t ShardingPlan::sum(int64_t UnitPlan::*bytes) const {
  return std::accumulate(units.begin(), units.end(), int64_t{0},
                         [&](int64_t total, const UnitPlan& unit) { return total + unit.*bytes; });
}

int64_t ShardingPlan::largest(int64_t UnitPlan::*bytes, size_t count) const {
  int64_t most = 0;
  for (size_t first = 0; first < units.size(); ++first) {
    int64_t window = 0;
    for (size_t i = first; i < std::min(units.size(), first + count); ++i) window += units[i].*bytes;
    most = std::max(most, window);
  }
  return most;
}

ShardingPlan plan_sharding(torch::nn::Module& module, const PlannedRanks& ranks,
                           const ShardOptions& options) {
  TORCH_CHECK(ranks.ranks >= 1, "fsdp: plan_sharding() for ", ranks.ranks, " ranks");
  const WalkedModule walked = walk_module(module);
  ShardingPlan plan{.ranks_per_row = row_ranks(ranks, options), .units = {}};
  const bool whole = options.strategy == Strategy::no_shard || plan.ranks_per_row == 1;
  std::vector<UnitDecl> decls = make_units(walked.root, layout_policy(options.wrap, walked.root),
                                           params_under(walked.root, options.ignored));
  decls = resize_units(std::move(decls),
                       {.min_bytes = options.min_unit_bytes, .max_bytes = options.max_unit_bytes});
  const bool one_host = ranks.ranks_per_host == 0 || plan.ranks_per_row <= ranks.ranks_per_host;
  const UnitSurroundings surroundings{.row_ranks = plan.ranks_per_row,
                                      .pieces = options.reproducible ? options.reproducible->microbatches : 0,
                                      .may_share = ranks.cpu && one_host && options.share_shards &&
                                                   !options.gather_codec && plan.ranks_per_row > 1,
                                      .host_side = !ranks.cpu};
  for (const PlannedUnit& unit : with_options(std::move(decls), options, whole))
    plan.units.push_back(to_plan(make_unit_spec(unit.decl, choose_unit(unit, options, surroundings)),
                                 unit.decl, ranks.ranks == 1));
  return plan;
}

}  // namespace fsdp
