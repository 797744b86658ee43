// A saved tensor as the public header shows it.
#pragma once

#include <fsdp/checkpoint_files.h>

#include <string>

#include "files/manifest.h"

namespace fsdp::detail {

inline constexpr const char* kComplex128 = "C128";  // no dtype of safetensors: pairs of F64 are saved

SavedTensorInfo tensor_info(const std::string& name, const SavedTensor& tensor);

}  // namespace fsdp::detail
