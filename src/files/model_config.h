// What exporting and importing share.
#pragma once

#include <fsdp/error.h>

#include <string>

#include "files/file_ops.h"
#include "files/hf_config.h"

namespace fsdp::detail {

// The key of a checkpoint's run values under which the model's config lies: an object with the keys and
// values of Hugging Face's config.json, of which GPT2Config and LlamaConfig of models/ have the names.
inline constexpr const char* kModelConfigKey = "model_config";

// A folder that was begun and could not be finished. What cannot be removed stays: the first error counts.
inline void remove_quietly(FileOps& files, const std::string& path) noexcept {
  try {
    remove_tree(files, path);
  } catch (const IoError&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace fsdp::detail
