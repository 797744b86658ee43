// Names of tensors in folders that transformers wrote.
#pragma once

#include <string>

#include "files/manifest.h"

namespace fsdp::detail {

// The name that a model's tensor has in the folder: folders of base models leave out a prefix.
std::string hf_name(const Manifest& manifest, const std::string& name);

// True for tensors that older versions of transformers saved and today's compute.
bool is_computed_today(const std::string& name);

}  // namespace fsdp::detail
