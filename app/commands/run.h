// `fsdp run`: starts any program as ranks.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

// What follows the options of `fsdp run` is the program and its arguments: if the command is `run`, `argc` is
// lowered so that the parser does not see them.
void add_run(CLI::App& app, Action& action, int& argc, char** argv);

}  // namespace fsdp::app
