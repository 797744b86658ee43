// `fsdp doctor`: checks machines, collectives and links, alone or as a rank of a launcher.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

// `argc`, `argv`: the command line, for messages that repeat it.
void add_doctor(CLI::App& app, Action& action, int argc, char** argv);

}  // namespace fsdp::app
