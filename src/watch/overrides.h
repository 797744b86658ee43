// Operators that we compute ourselves if a watched parameter is among their inputs.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

namespace fsdp::detail {

class WatchedUnit;

// Takes the operator's arguments from the stack and leaves its results there. `unit` is that of one input.
// Returns false, with nothing done, if LibTorch's own kernel is right.
using OpOverride = bool (*)(torch::jit::Stack& stack, WatchedUnit& unit);

// Null if there is none. A new override is a row of the table in overrides.cpp.
OpOverride override_of(std::string_view name);

}  // namespace fsdp::detail
