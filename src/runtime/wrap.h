// Public wrap policies, as the layout asks them.
#pragma once

#include <fsdp/options.h>

#include "layout/units.h"

namespace fsdp::detail {

UnitPolicy layout_policy(const fsdp::WrapPolicy& policy, const ModuleDecl& root);

}  // namespace fsdp::detail
