// The facts that ranks must have in common to shard a model together.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/options.h>

#include <string>
#include <vector>

#include "layout/units.h"
#include "shard/module_walk.h"

namespace fsdp::detail {

// A unit as it will be made, with the options in which it differs from the model.
struct PlannedUnit {
  UnitDecl decl;
  bool replicated = false;
  UnitOptions options = {};
};

// One line per fact, in words that complete "rank 1 has ...".
using Facts = std::vector<std::string>;

// Parameters in order of definition (names, shape, dtype, ties, requires_grad), buffers, and the options that
// ranks must agree on. Devices may differ: rank 0 may have values while others have the meta device.
Facts model_facts(const torch::nn::Module& module, const WalkedModule& walked, const ShardOptions& options);
Facts unit_facts(const std::vector<PlannedUnit>& units);

// Throws the same c10::Error on every rank unless `mine` is the same on all. The error names the lowest rank
// that differs from rank 0, the first fact in which it does, and `advice`. If all agree, it costs one
// exchange of a number per rank. Collective.
void require_agreement(Comm& all, c10::Device device, const Facts& mine, const char* advice);

}  // namespace fsdp::detail
