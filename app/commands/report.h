// `fsdp report`: writes a run's report.html.
#pragma once

#include <CLI/CLI.hpp>

#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_report(CLI::App& app, Action& action);

}  // namespace fsdp::app
