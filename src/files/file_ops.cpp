#include "files/file_ops.h"

#include <fsdp/error.h>

namespace fsdp::detail {

std::string read_text(const FileOps& files, const std::string& path, int64_t most) {
  const FilePtr file = files.open(path);
  const int64_t size = file->size();
  if (size > most)
    throw IoError(
        "read", path, 0,
        "it has " + std::to_string(size) + " bytes, at most " + std::to_string(most) + " are expected");
  std::string text(static_cast<size_t>(size), '\0');
  file->read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_text(FileOps& files, const std::string& path, const std::string& text) {
  const FilePtr file = files.create(path);
  file->write(std::as_bytes(std::span(text)), 0);
  file->sync();
  file->close();
}

void remove_tree(FileOps& files, const std::string& path) {
  if (!files.exists(path)) return;
  if (files.is_link(path) || !files.is_folder(path)) return files.remove_file(path);
  for (const std::string& name : files.list(path))
    remove_tree(files, std::string(path).append("/").append(name));
  files.remove_folder(path);
}

}  // namespace fsdp::detail
