// `fsdp data`: makes token files from texts and looks into them.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_data(CLI::App& app, Action& action);

}  // namespace fsdp::app
