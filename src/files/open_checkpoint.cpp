#include "files/open_checkpoint.h"

#include <fsdp/error.h>

#include <algorithm>
#include <span>

#include "files/hf_folder.h"
#include "files/run_folder.h"
#include "files/safetensors.h"
#include "files/safetensors_folder.h"

namespace fsdp::detail {

namespace {

// Describes `path` if it is no checkpoint of ours; empty if it is not recognised.
std::string known_as(const FileOps& files, const std::string& path) {
  if (!files.exists(path)) return "";
  if (!files.is_folder(path)) {
    const FilePtr file = files.open(path);
    std::string start(static_cast<size_t>(std::min<int64_t>(file->size(), 9)), '\0');
    file->read(std::as_writable_bytes(std::span(start)), 0);
    return other_format(start);
  }
  const auto has = [&](const char* name) { return files.exists(path + "/" + name); };
  if (has(kManifestName)) return "";
  if (has(kHfConfig))
    return "it is a Hugging Face folder without safetensors. Other files may run code when read, so they are "
           "never opened here: load the model in Python with from_pretrained and save it with "
           "save_pretrained";
  if (has(".metadata"))
    return "it is a checkpoint of torch.distributed.checkpoint with a pickled .metadata. Pickles may run "
           "code "
           "when read, so it is never opened here: load it in Python and save it with "
           "torch.distributed.checkpoint.hf_storage.HuggingFaceStorageWriter, or with safetensors";
  if (is_foreign_folder(files, path + "/sharded"))
    return "its folder 'sharded' holds safetensors of torch.distributed.checkpoint: give that folder";
  return "";
}

OpenCheckpoint find_ours(FileOps& files, const std::string& path) {
  try {
    return find_checkpoint(files, path);
  } catch (const CheckpointError&) {
    const std::string other = known_as(files, path);
    if (other.empty()) throw;
    throw CheckpointError(path + " is no checkpoint: " + other);
  }
}

}  // namespace

AnyCheckpoint open_checkpoint(FileOps& files, const std::string& path) {
  // A run that started from such a folder may save there: its own checkpoints come first.
  if (!RunFolder(files, path).is_run() && is_foreign_folder(files, path)) {
    AnyCheckpoint opened{.folder = path, .manifest = foreign_manifest(files, path), .identity = {}};
    for (const SavedFile& file : opened.manifest.files) opened.identity += to_hex(file.header);
    return opened;
  }
  const OpenCheckpoint found = find_ours(files, path);
  return {.folder = found.folder,
          .manifest = Manifest::parse(found.manifest_text, found.folder + "/" + kManifestName),
          .identity = to_hex(hash128(found.manifest_text))};
}

}  // namespace fsdp::detail
