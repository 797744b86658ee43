// How a model is sharded: which parameters form units, the strategy, the precision.
#pragma once

#include <fsdp/codec.h>
#include <fsdp/comm.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class Strategy : uint8_t {
  full_shard,  // parameters, gradients and optimizer state: 1/W each; gathered for forward and for backward
  shard_grad_op,  // as full_shard, but parameters stay gathered from forward to backward
  no_shard,       // everything whole on every rank; gradients are all-reduced
  // full_shard, and shard_grad_op, among the `shard_size` ranks of a row of the mesh; rows are copies of each
  // other, and gradients are reduced in the row and then over the rows.
  hybrid_shard,
  hybrid_shard_zero2,
};

// From "FULL_SHARD", "shard_grad_op", ..., in any case. Throws c10::Error, with the known ones, for another.
Strategy parse_strategy(const std::string& name);

// Element types. What is not set stays as the module has it.
struct Precision {
  std::optional<at::ScalarType> param = {};  // of forward and backward; the shard keeps the module's own
  std::optional<at::ScalarType> reduce =
      {};  // in which gradients are summed over ranks; default: the shard's
  std::optional<at::ScalarType> output = {};  // to which forward's floating results are cast
  std::optional<at::ScalarType> buffer = {};  // to which floating buffers are converted, once
  std::optional<at::ScalarType> master = {};  // to which floating parameters are converted: shards, moments
  bool keep_low_precision_grads = false;      // .grad() is of type `reduce` and not of the shard's
  bool cast_inputs = true;                    // forward's floating arguments are cast to `param`
};

Precision fp32();
// Compute in bf16 over an fp32 shard, reduce in fp32.
Precision bf16();
Precision fp16();       // compute in fp16; use a GradScaler
Precision bf16_true();  // everything in bf16: shards, gradients, moments
// From "32", "bf16-mixed", "16-mixed", "bf16-true". Throws c10::Error, with these, for another.
Precision parse_precision(const std::string& name);

// The same bits for every number of ranks: see docs/sharding.md, "Reproducible". A step's batch is
// `microbatches` parts of one shape; part i is computed by rank i mod W in its (i / W)-th backward of the
// step.
struct Reproducible {
  int microbatches = 1;  // a power of two, and a multiple of the number of ranks, which is one too
  uint64_t seed = 0;     // of all random numbers in forward and backward
  int threads = 1;       // of LibTorch in every rank: some kernels' sums depend on it
};
// What LibTorch's generators are seeded with before microbatch `microbatch` of step `step`.
uint64_t microbatch_seed(uint64_t seed, int64_t step, int64_t microbatch);

// A module as a wrap policy sees it.
struct ModuleInfo {
  std::string path;  // "transformer.h.0"
  std::string type;  // "BlockImpl": the C++ type without namespaces
  const torch::nn::Module* module = nullptr;
  int64_t free_elements = 0;  // of parameters below it that no unit has yet
};

// Says whether a module becomes a unit: gathered, released and reduced as one. Asked from the leaves up; what
// no module takes belongs to the root. An empty policy stands for the automatic choice: repeated blocks, and
// large modules beside them.
using WrapPolicy = std::function<bool(const ModuleInfo&)>;

WrapPolicy whole_model();                                 // one unit
WrapPolicy by_size(int64_t min_num_params = 1000);        // modules with at least so many elements left
WrapPolicy by_type_name(std::vector<std::string> types);  // "BlockImpl", "Block" or with namespaces
template <class... Modules>
WrapPolicy by_type() {
  return
      [](const ModuleInfo& info) { return ((dynamic_cast<const Modules*>(info.module) != nullptr) || ...); };
}

// What one unit does otherwise than the model.
struct UnitOptions {
  std::optional<bool> reshard_after_forward = {};
  std::optional<int> reshard_group = {};
  std::optional<Precision> precision = {};
};

struct ShardOptions {
  WrapPolicy wrap = {};
  Strategy strategy = Strategy::full_shard;
  Precision precision = {};
  std::function<UnitOptions(const std::string& unit)> unit = {};  // asked once per unit, by name
  // Paths of modules and parameters that stay as they are: not sharded, not reduced, not in parameters().
  std::vector<std::string> ignored = {};
  int64_t replicate_below = 0;  // parameters with fewer elements stay whole; their gradients are all-reduced
  int64_t min_unit_bytes = 0;   // smaller neighbours are joined
  int64_t max_unit_bytes = 0;   // larger units are cut between parameters; 0: never
  // So many consecutive ranks keep a unit between them from forward to backward, and gather it among
  // themselves then: a divisor of the ranks it is sharded over. 0: as the strategy says; 1: every rank keeps
  // all.
  int reshard_group = 0;
  int shard_size = 0;                      // of hybrid strategies: ranks of a row; 0: the ranks of a host
  ReduceOp gradients = ReduceOp::average;  // over ranks
  int limit_all_gathers = 2;               // units gathered at once; 0: no limit
  // CPU ranks of one host keep their shards side by side in memory that all of them see: what is computed
  // with as it is kept is not copied by a gather, and needs no slot.
  bool share_shards = true;
  bool sync_module_states = true;  // parameters and buffers start as rank 0's
  bool sync_batchnorm = false;     // BatchNorm layers with parameters take their statistics over all ranks
  bool check_gradients = false;    // a gradient that is not finite is thrown, with its rank and parameter
  // After every so many backwards ranks compare parameters of which they hold copies (no_shard,
  // replicate_below, rows of a hybrid strategy): one that differs is thrown, with rank and unit. In
  // reproducible mode rank 0 logs state_hash() as well. 0: never.
  int check_copies_every = 0;
  std::optional<Reproducible> reproducible = {};
  std::shared_ptr<const Codec> gather_codec = {};  // of shards on their way; none: cast to `precision.param`
  std::shared_ptr<const Codec> reduce_codec =
      {};  // of gradients on their way; none: cast to `precision.reduce`
  // Fills a parameter that is on the meta device and was not made by on_meta(): `whole` has memory.
  std::function<void(const std::string& name, at::Tensor& whole)> init = {};
  CommOptions comm = {};
};

}  // namespace fsdp
