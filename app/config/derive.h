// Values that follow from others, from the machine or from --mode.
#pragma once

#include <string>
#include <vector>

#include "app/config/problem.h"
#include "app/config/resolve.h"

namespace fsdp::config {

// Replaces `auto` and unset values of `settings` where they follow from the rest, and all that --mode smoke
// changes. Adds a note for what a user would not expect, a problem where the batch does not fit the ranks.
void derive(Settings& settings, const Machine& machine, std::vector<std::string>& notes, Problems& problems);

}  // namespace fsdp::config
