// Plans a run without running it: units, and bytes per rank by kind.
#pragma once

#include <string>

#include "app/config/settings.h"

namespace fsdp::train {

// Text for `fsdp train --dry-run`. `gpu`: ranks are GPUs. Makes the model without memory. Throws c10::Error
// and CheckpointError for a model that cannot be made.
std::string plan_run(const config::Settings& settings, bool gpu);

}  // namespace fsdp::train
