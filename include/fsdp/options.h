// Options of fully_shard(): units, sharding strategy, prefetching and more. docs/options.md has their names
// in PyTorch.
#pragma once

#include <fsdp/codec.h>
#include <fsdp/comm.h>
#include <fsdp/memory_options.h>
#include <fsdp/precision.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class Strategy : uint8_t {
  full_shard,     // shard parameters, gradients, optimizer state; gather for forward and again for backward
  shard_grad_op,  // as full_shard, but parameters stay gathered from forward to backward
  no_shard,       // replicate everything, as DDP does; gradients are all-reduced
  // full_shard over the `shard_size` ranks of a row of the mesh. Rows are replicas of each other: gradients
  // are reduce-scattered in the row, then all-reduced over the rows.
  hybrid_shard,
  hybrid_shard_zero2,  // the same with shard_grad_op
};

// Parses "FULL_SHARD", "shard_grad_op", ..., in any case. Throws c10::Error for other names, listing these.
Strategy parse_strategy(const std::string& name);

// The same bits on any number of ranks: see docs/sharding.md, "Reproducible". A step is `microbatches`
// microbatches of one shape; microbatch i runs on rank i mod W, as its (i / W)-th backward of the step.
struct Reproducible {
  int microbatches = 1;  // per step, over all ranks; a power of two and a multiple of W, also a power of two
  uint64_t seed = 0;     // seeds all random numbers in forward and backward
  int threads = 1;       // LibTorch's threads in every rank: the sums of some kernels depend on it
};
// The seed of LibTorch's default generators for microbatch `microbatch` of step `step`.
uint64_t microbatch_seed(uint64_t seed, int64_t step, int64_t microbatch);

// A module, as a wrap policy sees it.
struct ModuleInfo {
  std::string path;  // "transformer.h.0"
  std::string type;  // "BlockImpl": the C++ type without namespaces
  const torch::nn::Module* module = nullptr;
  int64_t free_elements = 0;  // elements of its parameters, submodules included, that are in no unit yet
};

// Returns whether a module becomes a unit, which is gathered, resharded and reduced as one. Called for every
// module from the leaves up; the root's unit takes the rest. Must return the same on every rank. An empty
// policy chooses automatically: repeated blocks, and large modules beside them.
using WrapPolicy = std::function<bool(const ModuleInfo&)>;

WrapPolicy whole_model();                                 // one unit
WrapPolicy by_size(int64_t min_num_params = 1000);        // modules with at least this many free_elements
WrapPolicy by_type_name(std::vector<std::string> types);  // "BlockImpl", "Block" or with namespaces
template <class... Modules>
WrapPolicy by_type() {
  return
      [](const ModuleInfo& info) { return ((dynamic_cast<const Modules*>(info.module) != nullptr) || ...); };
}

// Overrides for one unit. Unset fields inherit from ShardOptions. The first two exclude each other.
struct UnitOptions {
  std::optional<bool> reshard_after_forward = {};
  std::optional<int> reshard_group = {};
  std::optional<Precision> precision = {};
  // Prefetching by name: the units to gather when this unit is used in forward or in backward, in this order,
  // from the second step on. A list replaces the look-ahead and may exceed limit_all_gathers; empty: none.
  std::optional<std::vector<std::string>> forward_prefetch = {};
  std::optional<std::vector<std::string>> backward_prefetch = {};
};

struct ShardOptions {
  WrapPolicy wrap = {};
  Strategy strategy = Strategy::full_shard;
  Precision precision = {};
  std::function<UnitOptions(const std::string& unit)> unit = {};  // called once per unit with its name
  // Paths of modules and parameters to leave alone: not sharded, not reduced, not in parameters().
  std::vector<std::string> ignored = {};
  int64_t replicate_below = 0;  // parameters with fewer elements are replicated; gradients are all-reduced
  int64_t min_unit_bytes = 0;   // adjacent units smaller than this are merged
  int64_t max_unit_bytes = 0;   // larger units are split between parameters; 0: never
  // After forward, reshard a unit to this many consecutive ranks; backward gathers among them. Must divide
  // the ranks that a unit is sharded over. 0: as the strategy says; 1: every rank keeps the unit gathered.
  int reshard_group = 0;
  int shard_size = 0;                      // hybrid strategies: ranks per row; 0: the ranks of a host
  ReduceOp gradients = ReduceOp::average;  // average or sum over the ranks
  // Gradients are summed over the ranks and divided by this, whatever `gradients` says. Not 0.
  std::optional<double> gradient_divide_factor = {};
  // Limit of units gathered at once; 0: none. A higher limit lets prefetching look further ahead.
  int limit_all_gathers = 2;
  // Number of units that forward gathers ahead. Not set: limit_all_gathers - 1, at least 1; 0: none.
  std::optional<int> forward_prefetch = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  // CPU ranks of one host map each other's shards into memory: if the compute dtype equals the shard dtype,
  // an all-gather copies nothing and needs no slot.
  bool share_shards = true;
  bool sync_module_states = true;  // parameters and buffers start as rank 0's
  bool sync_batchnorm = false;     // BatchNorm layers with parameters compute statistics over all ranks
  // Operators that read a parameter get their other inputs cast to its compute dtype, for units with a
  // precision of their own: see docs/sharding.md, "Units in another dtype".
  bool cast_unit_inputs = false;
  bool check_gradients = false;  // throw if a gradient is not finite, with its rank and parameter
  // Compare replicated parameters (no_shard, replicate_below, rows of a hybrid strategy) every n-th backward,
  // and throw with rank and unit if they differ; 0: never. In reproducible mode rank 0 also logs
  // state_hash().
  int check_replicas_every = 0;
  std::optional<Reproducible> reproducible = {};
  Offload offload = {};
  std::shared_ptr<const Codec> gather_codec = {};  // for all-gathers; none: cast to `precision.param`
  std::shared_ptr<const Codec> reduce_codec = {};  // for reduce-scatters; none: cast to `precision.reduce`
  // Fills a parameter that is on the meta device but was not made by on_meta(); `whole` has memory.
  std::function<void(const std::string& name, at::Tensor& whole)> init = {};
  CommOptions comm = {};
};

}  // namespace fsdp
