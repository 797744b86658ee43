// An Outcome as JSON, for messages between the launchers of nodes.
#pragma once

#include <nlohmann/json.hpp>

#include "app/launch/outcome.h"

namespace fsdp::launch {

nlohmann::json to_json(const Outcome& outcome);

// Missing or strange values count as not known.
Outcome outcome_from(const nlohmann::json& json);

}  // namespace fsdp::launch
