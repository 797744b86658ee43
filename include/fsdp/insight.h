// What a sharded model tells about itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

enum class TrainingState : uint8_t { idle, forward_backward, summon_full_params };
enum class UnitState : uint8_t {
  sharded,    // this rank holds its shard only
  gathering,  // a slot is being filled
  gathered,   // the module's parameters are readable
  reducing,   // gradients have arrived that are not reduced yet
};

// Bytes this rank holds, and how often units moved.
struct MemoryStats {
  int64_t parameter_bytes = 0;  // shards
  int64_t gradient_bytes = 0;   // gradient shards
  int64_t arena_bytes = 0;      // slots of gathered units; one memory for all CPU ranks of a host
  int64_t buffer_bytes = 0;     // gradients on their way into a reduce
  int64_t overflow_bytes = 0;   // slots outside the arena, and parts kept for backward
  int64_t current_bytes = 0;    // all of the above
  int64_t peak_bytes = 0;
  int64_t saved_bytes = 0;  // what whole parameters and gradients would need more
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
};

// The part of a parameter that one rank owns, in elements of the flattened parameter.
struct ParameterShard {
  int rank = 0;
  int64_t start = 0;
  int64_t size = 0;
  bool is_local = false;
};

struct ParameterInfo {
  std::string name;
  std::string unit;
  std::vector<int64_t> shape;  // of the whole parameter
  UnitState state = UnitState::sharded;
  std::vector<ParameterShard> shards;  // the ranks that own some of it, in order
};

// How often one unit moved since the model was made.
struct UnitCounts {
  std::string name;
  int64_t gathers = 0;
  int64_t reduces = 0;
};

const char* to_string(TrainingState state);
const char* to_string(UnitState state);

}  // namespace fsdp
