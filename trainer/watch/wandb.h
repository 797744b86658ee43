// Whether Weights & Biases can be used. wandb_follow.py sends the metrics.
#pragma once

#include <optional>
#include <string>

namespace fsdp::watch {

// Starts `python`, a program name or path, and looks for the package wandb; with `online` also for a login.
// Returns what is missing and the line to type; unset: nothing is. Takes 0.1 s, with `online` about 2 s.
std::optional<std::string> wandb_problem(const std::string& python, bool online = false);

}  // namespace fsdp::watch
