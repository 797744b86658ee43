// The message for a command that is missing or does not exist.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fsdp::app {

// Says what was found and lists the commands that could stand there. Empty if the arguments name a command,
// or begin with an option of `app` or of one of its commands.
std::string describe_unknown_command(const CLI::App& app, int argc, char** argv);

}  // namespace fsdp::app
