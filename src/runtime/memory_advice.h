// Options that would reduce a model's memory.
#pragma once

#include <string>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/model.h"

namespace fsdp::detail {

// Unused options, those that save most first, with the bytes if they are known. The last lines are about
// activations.
std::vector<std::string> memory_advice(const Model& model, const Ledger& ledger);

}  // namespace fsdp::detail
