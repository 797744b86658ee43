// A folder of safetensors that other programs wrote, read as if it were a checkpoint, so that load() can take
// weights from it.
#pragma once

#include <string>
#include <vector>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Note [Folders of others]
// A folder without manifest.json is read by the headers of its safetensors files. There are three kinds:
// - a Hugging Face folder (hf_folder.h): config.json, and whole tensors in one file or several with an index;
// - a folder of torch.distributed.checkpoint with its HuggingFaceStorageWriter: a file per rank with the
//   parts of tensors that the rank held, at offsets given by DCP_SHARDING_INFO in `__metadata__`;
// - whole tensors without a config: the same writer consolidates such files, and export_safetensors writes
//   them. Other names of tied parameters are in `__metadata__`, as safetensors.torch.save_model puts them.
// The manifest made from them is `foreign`: no hashes, and boxes of any form. Our own shard files without
// their manifest are refused, because nothing tells whether they belong together.

inline constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

// True if a folder without manifest.json is of one of the three kinds.
bool is_foreign_folder(const FileOps& files, const std::string& path);

// A manifest of all tensors of the folder, under their names there. Throws CheckpointError or IoError if
// files are damaged, or do not make up their tensors.
Manifest foreign_manifest(const FileOps& files, const std::string& path);

}  // namespace fsdp::detail
