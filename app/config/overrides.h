// Values that are set outside the file: by flags, by the environment and by a C++ caller.
#pragma once

#include <string>
#include <vector>

#include "app/config/document.h"
#include "app/config/resolve.h"

namespace fsdp::config {

struct Override {
  const Key* key = nullptr;
  Json value;
  Origin origin;
  std::string model_config;  // it was set for the model config of this name; empty: for the one of the run
};

// In the order in which later ones win. Adds a problem for every key that is unknown or set twice to
// different values, and every value that does not fit.
std::vector<Override> read_overrides(const Request& request, const Environment& environment,
                                     Problems& problems);

}  // namespace fsdp::config
