// `fsdp train`: checks the configuration, then starts this machine's ranks or becomes one.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

// `argc`, `argv`: the command line, for the lines to type on each node.
void add_train(CLI::App& app, Action& action, int argc, char** argv);

}  // namespace fsdp::app
