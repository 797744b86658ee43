// The messages for a command that is missing or does not exist, and for arguments that a command does not
// take.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fsdp::app {

// Says what was found and lists the commands that could stand there. Empty if the arguments name a command,
// or begin with an option of `app` or of one of its commands.
std::string describe_unknown_command(const CLI::App& app, int argc, char** argv);

// Says what the command in use does not take, and names the option that may be meant. After CLI::ExtrasError.
std::string describe_unexpected(const CLI::App& app);

}  // namespace fsdp::app
