// `fsdp config`: prints, explains and checks configurations of `fsdp train`.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_config(CLI::App& app, Action& action);

}  // namespace fsdp::app
