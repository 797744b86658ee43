// How the ranks of a node ended, as launchers tell each other.
#pragma once

#include <nlohmann/json.hpp>

#include "app/launch/outcome.h"

namespace fsdp::launch {

nlohmann::json to_json(const Outcome& outcome);

// Missing or strange values count as not known.
Outcome outcome_from(const nlohmann::json& json);

}  // namespace fsdp::launch
