// A saved tensor as the public header describes it.
#pragma once

#include <fsdp/checkpoint_files.h>

#include <string>

#include "files/manifest.h"

namespace fsdp::detail {

inline constexpr const char* kComplex128 = "C128";  // no dtype of safetensors: saved as pairs of F64

SavedTensorInfo tensor_info(const std::string& name, const SavedTensor& tensor);

}  // namespace fsdp::detail
