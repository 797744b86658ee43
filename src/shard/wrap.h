// Converts public wrap policies to those of the layout.
#pragma once

#include <fsdp/options.h>

#include "layout/units.h"

namespace fsdp::detail {

// The policy of whole_model(): no module is a unit of its own.
bool never(const ModuleInfo& module);

UnitPolicy layout_policy(const fsdp::WrapPolicy& policy, const ModuleDecl& root);

}  // namespace fsdp::detail
