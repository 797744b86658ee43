// Public wrap policies, as the layout asks them.
#pragma once

#include <fsdp/options.h>

#include "layout/units.h"

namespace fsdp::detail {

// What whole_model() asks: no module is a unit of its own.
bool never(const ModuleInfo& module);

UnitPolicy layout_policy(const fsdp::WrapPolicy& policy, const ModuleDecl& root);

}  // namespace fsdp::detail
