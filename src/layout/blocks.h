// The modules that the automatic wrap policy makes units.
#pragma once

#include <set>
#include <string>

#include "layout/module_tree.h"

namespace fsdp::detail {

// Paths of the modules that become units, as wrap_automatic() promises. Empty: the model is one unit.
std::set<std::string> block_paths(const ModuleDecl& root);

}  // namespace fsdp::detail
