// The command that the user typed, for messages that repeat it.
#pragma once

#include <string>

namespace fsdp::app {

// The command with its arguments, in quotes where a shell needs them. Its own name is `fsdp`, however it was
// found.
std::string typed_command(int argc, char** argv);

}  // namespace fsdp::app
