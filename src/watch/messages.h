// Error messages for users who touch a parameter that is not there.
#pragma once

#include <string>

namespace fsdp::detail {

// A parameter is read while it is sharded.
std::string sharded_message(const std::string& name);
// A parameter is read after its model is gone.
std::string dropped_message();
// The .grad() of a module's parameter is read.
std::string trap_message(const std::string& name);

}  // namespace fsdp::detail
