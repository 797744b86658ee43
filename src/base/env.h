// Environment variables, parsed to the type they should have.
#pragma once

#include <optional>
#include <string>

namespace fsdp::detail {

// The value, or nothing if the variable is unset or empty.
std::optional<std::string> env_string(const char* name);

// The value as a whole number of at least `lowest`. Throws RendezvousError, with the variable and its value,
// if it is none.
std::optional<int> env_int(const char* name, int lowest = 0);

// True for 1, true, yes and on, in any case.
bool env_flag(const char* name);

}  // namespace fsdp::detail
