// Names of tensors in folders that transformers wrote.
#pragma once

#include <string>

#include "files/manifest.h"

namespace fsdp::detail {

// The name in the folder of a tensor of a model: folders of base models leave out a prefix.
std::string hf_name(const Manifest& manifest, const std::string& name);

// Whether older versions of transformers saved it and today's compute it.
bool is_computed_today(const std::string& name);

}  // namespace fsdp::detail
