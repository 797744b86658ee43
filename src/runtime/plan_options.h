// The plan options of a model, from its ShardOptions.
#pragma once

#include <fsdp/options.h>

#include <memory>
#include <vector>

#include "runtime/unit.h"

namespace fsdp::detail {

PlanOptions plan_options(const ShardOptions& options, const std::vector<std::shared_ptr<Unit>>& units);

}  // namespace fsdp::detail
