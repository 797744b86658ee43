// `fsdp ctl`: asks a run that is going on for its status and metrics, and tells it to save or stop.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_ctl(CLI::App& app, Action& action);

}  // namespace fsdp::app
