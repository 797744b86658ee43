// On how many ranks a program runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace fsdp::app {

// For `fsdp train`: does the configuration, or the run that goes on, keep its global batch on that many
// ranks? Asks --dry-run, which starts nothing. `ranks` are those of a node, `most` the most nodes. Empty for
// other programs, and where no number up to that fits: then the ranks say better what is wrong.
std::function<bool(int ranks)> world_sizes_that_fit(const std::vector<std::string>& command, int ranks,
                                                    int most);

}  // namespace fsdp::app
