// Environment variables, read as what they should be.
#pragma once

#include <optional>
#include <string>

namespace fsdp::detail {

// The value, or nothing where the variable is unset or empty.
std::optional<std::string> env_string(const char* name);

// A whole number of at least `lowest`. Throws RendezvousError naming the variable and its value where it is
// not.
std::optional<int> env_int(const char* name, int lowest = 0);

// True for 1, true, yes and on, in any case.
bool env_flag(const char* name);

}  // namespace fsdp::detail
