// Statistics, states and phases of a sharded model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

enum class TrainingState : uint8_t { idle, forward_backward, summon_full_params };
enum class UnitState : uint8_t {
  sharded,    // this rank holds its shard only
  gathering,  // an all-gather into its slot is in flight
  gathered,   // the module's parameters are readable
  reducing,   // gradients have arrived that are not reduced yet
};

// The phase of a step that a unit is in: FSDP1's HandleTrainingState. UnitState says whether it is gathered.
enum class UnitPhase : uint8_t {
  idle,           // not in use: holds the shard, and a slot if it is gathered ahead or kept
  forward,        // operators of forward read it, until one of another unit runs: holds its slot
  backward_pre,   // gathered or being gathered for backward: holds its slot, and gradients as they arrive
  backward_post,  // its gradients have arrived or are being reduced: holds gradient buffer and shard
  summon,         // inside full_params(): holds the shard, and whole parameters in memory of their own
};

// A change of a unit's phase.
struct UnitTransition {
  std::string unit;
  UnitPhase from = UnitPhase::idle;
  UnitPhase to = UnitPhase::idle;
};

// Bytes this rank holds, and how often units were gathered and reduced since the model was created.
struct MemoryStats {
  int64_t parameter_bytes = 0;    // shards
  int64_t gradient_bytes = 0;     // gradient shards
  int64_t arena_bytes = 0;        // slots of gathered units; CPU ranks of one host share them
  int64_t buffer_bytes = 0;       // unreduced gradients
  int64_t overflow_bytes = 0;     // slots outside the arena, and what reshard groups keep for backward
  int64_t partial_sum_bytes = 0;  // partial sums that wait for other microbatches of the step
  int64_t wire_bytes = 0;         // gather_codec: encoded shards in flight
  int64_t optimizer_bytes = 0;    // moments, if memory_stats() was given the optimizer
  int64_t current_bytes = 0;      // all of the above
  int64_t host_bytes = 0;         // pinned host memory for CPU offload; not in current_bytes
  int64_t peak_bytes = 0;         // highest sum without moments, ever or since reset_peak_memory()
  int64_t step_peak_bytes = 0;    // the same since the last training step (forward and backward) began
  int64_t saved_bytes = 0;        // bytes that sharding saves in parameters and gradients
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
};

// The memory that a rank held when the model went on to another unit.
struct MemorySample {
  std::string moment;  // "forward block0", "backward block0", "end of backward"
  MemoryStats memory;
};
// A table with a row per sample and a bar for current_bytes.
std::string format_timeline(const std::vector<MemorySample>& samples);

// The elements [start, start + size) of the flattened parameter, owned by one rank.
struct ParameterShard {
  int rank = 0;  // world rank
  int64_t start = 0;
  int64_t size = 0;
  bool is_local = false;
};

struct ParameterInfo {
  std::string name;
  std::string unit;
  std::vector<int64_t> shape;  // unsharded
  UnitState state = UnitState::sharded;
  UnitPhase phase = UnitPhase::idle;
  std::vector<ParameterShard> shards;  // ordered by owning rank; hybrid: the ranks of this rank's row
};

// Counts of gathers and reduces of one unit since the model was created.
struct UnitCounts {
  std::string name;
  int64_t gathers = 0;
  int64_t reduces = 0;
};

// String literals.
const char* to_string(TrainingState state);
const char* to_string(UnitState state);
const char* to_string(UnitPhase phase);

}  // namespace fsdp
