#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <algorithm>

#include "files/checkpoint_reader.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

// The tensors that lie in the bytes [begin, end) of a file, for an error message.
std::string tensors_there(const Manifest& manifest, int32_t file, int64_t begin, int64_t end) {
  std::vector<std::string> names;
  for (const auto& one : manifest.tensors) {
    const SavedTensor& tensor = one.second;
    const bool hit = std::any_of(tensor.boxes.begin(), tensor.boxes.end(), [&](const SavedBox& saved) {
      const int64_t bytes = saved.box.numel() * dtype_bytes(tensor.dtype);
      return saved.file == file && saved.offset < end && saved.offset + bytes > begin;
    });
    if (hit) names.push_back(one.first);
  }
  if (names.empty()) return "no tensor lies there";
  std::string text = "'" + names.front() + "'";
  if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " more tensors";
  return text + (names.size() > 1 ? " lie there" : " lies there");
}

}  // namespace

}  // namespace fsdp::detail

namespace fsdp {

VerifiedCheckpoint verify_checkpoint(const std::string& path, const ByteProgress& progress) {
  using namespace detail;
  CheckpointReader reader(posix_files(), path);
  const Manifest& manifest = reader.manifest();
  int64_t total = 0;
  for (const SavedFile& file : manifest.files) total += file.header_bytes + file.data_bytes;
  VerifiedCheckpoint verified{.folder = reader.folder(),
                              .files = static_cast<int64_t>(manifest.files.size()),
                              .tensors = static_cast<int64_t>(manifest.tensors.size()),
                              .bytes = 0,
                              .hashed = !manifest.foreign};
  for (int32_t index = 0; index < static_cast<int32_t>(manifest.files.size()); ++index) {
    const SavedFile& saved = manifest.files[static_cast<size_t>(index)];
    BlockReader& file = reader.file(index);
    verified.bytes += saved.header_bytes;
    for (int64_t begin = 0; begin < saved.data_bytes; begin += kBlockBytes) {
      const int64_t end = std::min(saved.data_bytes, begin + kBlockBytes);
      try {
        file.read(begin, end, [](auto) {});
      } catch (const CheckpointError& error) {
        throw CheckpointError(std::string(error.what()) + "; " + tensors_there(manifest, index, begin, end) +
                              ". Take another checkpoint, or another copy of this one");
      }
      verified.bytes += end - begin;
      if (progress) progress(verified.bytes, total);
    }
  }
  return verified;
}

}  // namespace fsdp
