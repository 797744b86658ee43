// Opens a checkpoint of ours, or a folder of safetensors of other programs, for load() and `fsdp ckpt`.
#pragma once

#include <string>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

struct AnyCheckpoint {
  std::string folder;
  Manifest manifest;
  std::string identity;  // the same for all ranks that see the same files
};

// `path` is a checkpoint, a run's folder, meaning its latest, or a folder as in Note [Folders of others].
// Throws CheckpointError or IoError; the message says what `path` is instead.
AnyCheckpoint open_checkpoint(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
