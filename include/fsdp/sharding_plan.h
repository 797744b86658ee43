// Plans fully_shard() of a module for any number of ranks, without other ranks: units and bytes.
#pragma once

#include <fsdp/options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

// The ranks to plan for.
struct PlannedRanks {
  int ranks = 1;
  int ranks_per_host = 0;  // 0: all are on one host
  bool cpu = true;         // CPU ranks of a host can share memory
};

// One unit, in bytes per rank.
struct UnitPlan {
  std::string name;
  int64_t parameters = 0;      // elements of the whole unit
  int64_t shard_bytes = 0;     // parameters that the rank keeps
  int64_t gradient_bytes = 0;  // the rank's shard of the reduced gradient
  int64_t slot_bytes = 0;      // the gathered unit; 0: ranks read each other's shards in place
  int64_t buffer_bytes = 0;    // gradients before they are reduced
};

struct ShardingPlan {
  int ranks_per_row = 1;  // ranks that hold the model between them
  std::vector<UnitPlan> units;

  int64_t parameters() const { return sum(&UnitPlan::parameters); }
  int64_t shard_bytes() const { return sum(&UnitPlan::shard_bytes); }
  int64_t gradient_bytes() const { return sum(&UnitPlan::gradient_bytes); }
  // The sum of the `count` largest slots, or gradient buffers: those in memory at the same time.
  int64_t slot_bytes(size_t count) const { return largest(&UnitPlan::slot_bytes, count); }
  int64_t buffer_bytes(size_t count) const { return largest(&UnitPlan::buffer_bytes, count); }

 private:
  int64_t sum(int64_t UnitPlan::*bytes) const;
  int64_t largest(int64_t UnitPlan::*bytes, size_t count) const;
};

// Plans for a module with or without memory: one made by on_meta() costs nothing. Changes nothing. Throws
// c10::Error for options whose numbers fully_shard() would refuse.
ShardingPlan plan_sharding(torch::nn::Module& module, const PlannedRanks& ranks, const ShardOptions& options);

}  // namespace fsdp
