// `fsdp run`: starts a program as the ranks of this machine.
#pragma once

#include <vector>

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_run(CLI::App& app, Action& action);

// The arguments without the "--" that may stand before the program of `fsdp run`.
std::vector<char*> without_separator(const CLI::App& app, int argc, char** argv);

}  // namespace fsdp::app
