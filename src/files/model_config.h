// Shared parts of export and import.
#pragma once

#include <fsdp/error.h>

#include <string>

#include "files/file_ops.h"
#include "files/hf_config.h"

namespace fsdp::detail {

// The key of a checkpoint's run values that holds the model's config: an object with the keys and values of
// Hugging Face's config.json, whose names GPT2Config and LlamaConfig of models/ have.
inline constexpr const char* kModelConfigKey = "model_config";

// Removes a folder that could not be finished. Errors of the removal are ignored: the first error counts.
inline void remove_quietly(FileOps& files, const std::string& path) noexcept {
  try {
    remove_tree(files, path);
  } catch (const IoError&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace fsdp::detail
