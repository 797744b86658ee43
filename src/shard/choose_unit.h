// The choices for one unit that follow from its options, before there is a group of ranks.
#pragma once

#include <fsdp/options.h>

#include "layout/unit_spec.h"
#include "shard/agreement.h"

namespace fsdp::detail {

// The facts about ranks and devices that choices depend on.
struct UnitSurroundings {
  int row_ranks = 1;       // that hold the model between them
  int pieces = 0;          // of reproducible mode; 0: one per rank
  bool may_share = false;  // ranks can read each other's shards in place
  bool host_side = false;  // CPU offload is on, and the device is not the CPU
};

// Without the reshard group, which needs a group of ranks.
UnitChoice choose_unit(const PlannedUnit& planned, const ShardOptions& options,
                       const UnitSurroundings& surroundings);

// Takes small parameters out of the units if they are to be replicated, and asks ShardOptions::unit for the
// options of each unit. `whole`: there are no shards, so nothing is gained by replicating.
std::vector<PlannedUnit> with_options(std::vector<UnitDecl> decls, const ShardOptions& options, bool whole);

}  // namespace fsdp::detail
