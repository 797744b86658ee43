// `fsdp run`: starts any program as ranks.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

// The words behind the options of `fsdp run` are the program and its arguments, not options of `fsdp`. If the
// command is `run`, `argc` is lowered, so that the parser does not see these words.
void add_run(CLI::App& app, Action& action, int& argc, char** argv);

}  // namespace fsdp::app
