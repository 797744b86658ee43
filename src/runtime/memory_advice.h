// Which options would make a model hold less.
#pragma once

#include <string>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/model.h"

namespace fsdp::detail {

// Options that are not in use, with the bytes they would save where that can be said. The last lines are
// about activations.
std::vector<std::string> memory_advice(const Model& model, const Ledger& ledger);

}  // namespace fsdp::detail
