// `fsdp generate`: texts of a run's model. Checks what was typed, then becomes the worker.
#pragma once

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_generate(CLI::App& app, Action& action);

}  // namespace fsdp::app
