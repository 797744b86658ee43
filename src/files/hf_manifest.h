// A Hugging Face folder as if it were a checkpoint: what load() reads weights from.
#pragma once

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

bool is_hf_folder(const FileOps& files, const std::string& path);

// Of all tensors of the folder, whole, under the names they have there, without hashes. Throws as HfFolder
// does.
Manifest hf_manifest(const FileOps& files, const std::string& path);

// The name in the folder of a tensor of a model: folders of base models leave out a prefix.
std::string hf_name(const Manifest& manifest, const std::string& name);

// Whether older versions of transformers saved it and today's compute it.
bool is_computed_today(const std::string& name);

}  // namespace fsdp::detail
