// Advice for ranks that used different units.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "runtime/unit.h"

namespace fsdp::detail {

// Returns `error`. If it says that ranks used different `units` that lie in one module, the same CommError
// with the advice to make that module one unit.
std::exception_ptr with_advice(const std::exception_ptr& error,
                               const std::vector<std::shared_ptr<Unit>>& units);

}  // namespace fsdp::detail
