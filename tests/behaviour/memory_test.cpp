// Promise: a rank holds 4N/W of state, and a step's extra memory is the planned slots and gradient buffers.
#include <gtest/gtest.h>

#include "base/host_pool.h"
#include "models/gpt2.h"
#include "support/allocator_watch.h"
#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kBlocks = 12;
constexpr int64_t kWidth = 64;
constexpr int64_t kFloat = 4;
constexpr int64_t kAlign = 256;
constexpr int64_t kPage = 4096;
constexpr int64_t kCounters = 16 * 1024 + kPage;  // of one allocation

std::string figures(const std::string& what, int64_t found, int64_t allowed) {
  return what + ": " + std::to_string(found) + " bytes, allowed " + std::to_string(allowed);
}

int64_t whole_elements(const ParameterInfo& info) {
  int64_t n = 1;
  for (const int64_t extent : info.shape) n *= extent;
  return n;
}

// Elements of the largest unit, and of the largest block.
struct Sizes {
  int64_t largest = 0;
  int64_t block = 0;
};
Sizes sizes_of(const Sharded<Learner>& model) {
  std::map<std::string, int64_t> units;
  for (const auto& item : model.named_parameters()) {
    const ParameterInfo info = model.parameter_info(item.key());
    units[info.unit] += (whole_elements(info) * kFloat + kAlign - 1) / kAlign * kAlign / kFloat;
  }
  Sizes sizes;
  for (const auto& [name, elements] : units) {
    sizes.largest = std::max(sizes.largest, elements);
    if (name.find(".h.") != std::string::npos) sizes.block = std::max(sizes.block, elements);
  }
  return sizes;
}

// What a rank may need, in bytes, of a model in fp32: parameters, gradients and two moments are 4 values per
// element, split over W, padded per parameter and shard.
struct Formula {
  Formula(const Sharded<Learner>& model, int ranks, bool shares) {
    const auto pieces =
        static_cast<int64_t>(model.named_parameters().size() + model.flat_parameters().size());
    const Sizes sizes = sizes_of(model);
    state = 4 * kFloat * model.num_parameters() / ranks;
    padding = 4 * pieces * kAlign;  // the last rank has most of it
    tail = ranks * kAlign;          // a unit is a multiple of W shards
    // Two units.
    slots = ranks == 1 || shares ? 0 : 2 * (sizes.largest * kFloat + tail);
    // One that fills, one on its way, and the root's, which is open from the first gradient of the norm to
    // the last one of the embedding.
    buffers = (2 * sizes.block + sizes.largest) * kFloat + 3 * tail;
    // In a step: activations, and what autograd holds of one unit's gradients before they are taken.
    in_flight = 2 * sizes.largest * kFloat + 16 * kBlocks * 16 * 4 * kWidth * kFloat;
  }
  int64_t state, padding, tail, slots, buffers, in_flight;
};

// `own` bytes are the state of a rank after a step, `between` those that stay when gradients are dropped.
void require_state(const Formula& formula, int64_t own, int64_t between) {
  const int64_t small = 64 * 1024;  // batches, scalars
  require(own >= formula.state - formula.padding,
          figures("state, at least", own, formula.state - formula.padding));
  const int64_t most = formula.state + formula.padding + small;
  require(own <= most, figures("state", own, most));
  const int64_t less = formula.state * 3 / 4 + formula.padding + small;
  require(between <= less, figures("state between steps", between, less));
}

void require_planned(const Formula& formula, const MemoryStats& stats) {
  require(stats.arena_bytes <= formula.slots, figures("arena", stats.arena_bytes, formula.slots));
  require(stats.buffer_bytes <= formula.buffers,
          figures("gradient buffers", stats.buffer_bytes, formula.buffers));
}

// Ranks, and whether their shards lie side by side.
class Memory : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(Memory, IsFourValuesPerElementOverWAndThePlannedBuffers) {
  const auto [world_size, shares] = GetParam();
  run_processes(world_size, [&](World& world) {
    AllocatorWatch allocator;
    const int64_t alone = shared_memory_bytes();
    const auto group = Comm::create(world);  // what a group needs by itself, banks and counters
    const int64_t control = shared_memory_bytes() - alone;
    const int64_t shared_before = shared_memory_bytes();
    auto learner = make_gpt2(kBlocks, kWidth);
    auto model =
        fully_shard(world, learner, {.wrap = by_type<models::GPT2BlockImpl>(), .share_shards = shares});
    AdamW optimizer(model.parameters(), AdamWOptions(1e-3));
    for (int64_t i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      if (i == 3) allocator.restart_peak();
      model(learner->batch(i * world.size() + world.rank())).backward();
      optimizer.step();
    }

    const Formula formula(model, world.size(), shares);
    // Shards that lie side by side are not this rank's alone: the allocator has not seen them.
    const int64_t whole = shares && world.size() > 1 ? kFloat * model.num_parameters() : 0;
    const int64_t own_state = allocator.live_bytes() + whole / world.size();
    optimizer.zero_grad();  // gradients live from backward to here
    require_state(formula, own_state, allocator.live_bytes() + whole / world.size());
    const int64_t step_allowed = formula.state + formula.padding + formula.in_flight;
    require(allocator.peak_bytes() <= step_allowed,
            figures("peak of a step", allocator.peak_bytes(), step_allowed));

    // W ranks map each other's buffers.
    const int64_t buffers = world.size() * (formula.buffers + kPage) + 2 * kCounters;
    const int64_t shared = shared_memory_bytes() - shared_before;
    const auto units = static_cast<int64_t>(model.flat_parameters().size());
    const int64_t shards =
        whole == 0 ? 0 : whole + formula.padding * world.size() + units * (kCounters + formula.tail);
    const int64_t shared_allowed = world.size() == 1 ? control : shards + formula.slots + buffers + control;
    require(shared <= shared_allowed, figures("shared memory", shared, shared_allowed));
    const MemoryStats stats = model.memory_stats();
    require_planned(formula, stats);
    if (world.rank() == 0)
      std::printf("W=%d%s: state %ld of 4N/W = %ld, slots %ld, gradient buffers %ld, shared %ld bytes\n",
                  world.size(), shares ? ", shards side by side" : "", own_state, formula.state,
                  stats.arena_bytes, stats.buffer_bytes, shared);
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSizes, Memory,
    ::testing::ValuesIn(std::vector<std::pair<int, bool>>{
        {1, true}, {2, false}, {4, false}, {8, false}, {2, true}, {4, true}, {8, true}}));

// The same formula. A rank has its own slots and gradient buffers, in memory of LibTorch's allocator, which
// rounds every tensor up.
TEST(GpuMemory, IsFourValuesPerElementOverWAndThePlannedBuffers) {
  constexpr int64_t kGranule = 512;
  for (const int ranks : {1, 2, 4})
    run_on_gpus(ranks, [&](World& world) {
      auto learner = make_gpt2(kBlocks, kWidth);
      {  // The libraries' workspaces are not the model's.
        auto plain = make_gpt2(kBlocks, kWidth);
        plain->to(world.device());
        plain->forward(plain->batch_on(0, world.device())).backward();
      }
      DeviceMemory allocator(world.device());
      auto model = fully_shard(world, learner, {.wrap = by_type<models::GPT2BlockImpl>()});
      AdamW optimizer(model.parameters(), AdamWOptions(1e-3));
      for (int64_t i = 0; i < 4; ++i) {
        optimizer.zero_grad();
        if (i == 3) allocator.restart_peak();
        model(learner->batch_on(i * world.size() + world.rank(), world.device())).backward();
        optimizer.step();
      }

      Formula formula(model, world.size(), /*shares=*/false);
      formula.padding += 4 * static_cast<int64_t>(model.named_parameters().size()) * kGranule;
      const MemoryStats stats = model.memory_stats();
      require_planned(formula, stats);
      require(stats.parameter_bytes <= (formula.state + formula.padding) / 4, "parameter_bytes is a quarter");
      const int64_t planned = stats.arena_bytes + stats.buffer_bytes;
      const int64_t own_state = allocator.live_bytes() - planned;
      optimizer.zero_grad();
      require_state(formula, own_state, allocator.live_bytes() - planned);
      const int64_t allowed = formula.state + formula.padding + planned + formula.in_flight;
      require(allocator.peak_bytes() <= allowed, figures("peak of a step", allocator.peak_bytes(), allowed));
      if (world.rank() == 0)
        std::printf(
            "W=%d on a GPU: state %ld of 4N/W = %ld, slots %ld, gradient buffers %ld, peak %ld bytes\n",
            world.size(), own_state, formula.state, stats.arena_bytes, stats.buffer_bytes,
            allocator.peak_bytes());
    });
}

// Reads how often each unit moves in one step, when its plan is known.
std::map<std::string, UnitCounts> counts_of_a_step(World& world, std::shared_ptr<Learner> learner,
                                                   Strategy strategy) {
  auto model =
      fully_shard(world, learner,
                  {.wrap = by_type<models::GPT2BlockImpl, torch::nn::EmbeddingImpl>(), .strategy = strategy});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const auto step = [&](int64_t number) {
    model(learner->batch(number * world.size() + world.rank())).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  step(0);
  step(1);
  std::map<std::string, UnitCounts> counts;
  for (const UnitCounts& one : model.unit_counts()) counts[one.name] = one;
  step(2);
  for (const UnitCounts& one : model.unit_counts()) {
    counts[one.name].gathers = one.gathers - counts[one.name].gathers;
    counts[one.name].reduces = one.reduces - counts[one.name].reduces;
  }
  return counts;
}

std::string text(const std::map<std::string, UnitCounts>& counts) {
  std::string all;
  for (const auto& [name, one] : counts)
    all +=
        name + ": " + std::to_string(one.gathers) + " gathers, " + std::to_string(one.reduces) + " reduces; ";
  return all;
}

TEST(Counts, TwoGathersAndOneReducePerUnitAndStep) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](World& world) {
      const auto counts = counts_of_a_step(world, make_gpt2(4, 16, false), Strategy::full_shard);
      for (const auto& [name, one] : counts) {
        const bool once = name.find("wte") != std::string::npos || name.find("wpe") != std::string::npos ||
                          name == "root";  // the norm and the head
        require(one.gathers == (once ? 1 : 2) && one.reduces == 1, text(counts));
      }
      require(counts.size() == 7, text(counts));
    });
  }
}

TEST(Counts, ATiedEmbeddingIsGatheredTwice) {
  run_ranks(2, [&](World& world) {
    for (const auto& [name, one] : counts_of_a_step(world, make_gpt2(4, 16, true), Strategy::full_shard))
      require(one.gathers == (name.find("wpe") != std::string::npos ? 1 : 2) && one.reduces == 1, name);
  });
}

TEST(Counts, ShardGradOpGathersOnceAndReducesOnce) {
  run_ranks(2, [&](World& world) {
    const auto counts = counts_of_a_step(world, make_gpt2(4, 16, false), Strategy::shard_grad_op);
    for (const auto& [name, one] : counts) require(one.gathers == 1 && one.reduces == 1, text(counts));
  });
}

TEST(Counts, NoShardOnlyReduces) {
  run_ranks(2, [&](World& world) {
    const auto counts = counts_of_a_step(world, make_gpt2(4, 16, false), Strategy::no_shard);
    for (const auto& [name, one] : counts) require(one.gathers == 0 && one.reduces == 1, text(counts));
  });
}

// Memory that only the making of a model, its first step or full_params() needed goes back to the system.
TEST(Counts, WhatWasWholeForAWhileIsNotKept) {
  run_processes(2, [](World& world) {
    auto model = fully_shard(world, make_gpt2(4, 256), {});
    require(detail::host_pool_stats().kept == 0, "kept after fully_shard");
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    for (int step = 0; step < 4; ++step) {
      model(model.module().batch(step)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto whole = static_cast<size_t>(4 * model.num_parameters());
    const size_t kept = detail::host_pool_stats().kept;
    // Gradient shards are half of that; they go at zero_grad().
    require(kept < whole, "kept " + std::to_string(kept) + " of " + std::to_string(whole));
    { const auto scope = model.full_params(); }
    require(detail::host_pool_stats().kept == 0, "kept after full_params");
  });
}

// One rank reduces nothing: gradients that are cast into their shard are given back while backward goes on.
TEST(Memory, OneRankHoldsLowPrecisionGradientsOfFewUnitsAtOnce) {
  run_ranks(1, [](World& world) {
    constexpr int64_t kLayers = 8;
    torch::nn::Sequential net;
    for (int64_t layer = 0; layer < kLayers; ++layer) net->push_back(torch::nn::Linear(kWidth, kWidth));
    auto model = fully_shard(world, net, {.wrap = by_size(200), .precision = bf16()});
    const int64_t bf16_gradients = 2 * model.num_parameters();
    AllocatorWatch allocator;
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      const at::Tensor loss = model(torch::ones({1, kWidth})).sum();
      allocator.restart_peak();
      loss.backward();
      const int64_t for_a_while = allocator.peak_bytes() - allocator.live_bytes();
      if (step == 0) continue;  // not planned yet
      require(for_a_while < bf16_gradients / 2,
              figures("gradients on their way", for_a_while, bf16_gradients / 2));
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
