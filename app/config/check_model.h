// Contradictions between the sizes of a model, its tokenizer and the sequences.
#pragma once

#include <string>

#include "app/config/problem.h"
#include "app/config/settings.h"

namespace fsdp::config {

void check_model(const Settings& settings, Problems& problems);

// "training.max_steps 100 (config.yaml:7)".
std::string described(const Settings& settings, const std::string& key);

}  // namespace fsdp::config
