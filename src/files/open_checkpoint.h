// Opens what load() and `fsdp ckpt` read: a checkpoint of ours, or a folder of safetensors that others wrote.
#pragma once

#include <string>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

struct AnyCheckpoint {
  std::string folder;
  Manifest manifest;
  std::string identity;  // the same for all that see the same files
};

// `path` is a checkpoint, a run's folder, whose latest is taken, or a folder as in Note [Folders of others].
// Throws CheckpointError or IoError, in words that say what `path` is instead.
AnyCheckpoint open_checkpoint(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
