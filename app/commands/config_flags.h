// The flags that `fsdp train` and `fsdp config` share: which configuration is meant.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "app/config/resolve.h"

namespace fsdp::app {

// CLI11 fills this in while it reads the arguments.
std::shared_ptr<config::Request> add_config_flags(CLI::App& command);

// The GPUs and cores that this process may use. GPUs are counted by their device files and
// CUDA_VISIBLE_DEVICES: nothing of CUDA is loaded.
config::Machine find_machine();

// To stderr, a line each.
void print_notes(const std::vector<std::string>& notes);
// To stderr, all of them. Returns the exit code.
int print_problems(const std::vector<std::string>& problems);

}  // namespace fsdp::app
