// A file in memory, read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp::data {

// Maps a regular file. The mapping lives as long as the object. Throws IoError where the file cannot be
// opened, mapped, or is no regular file. A file must not become shorter while it is mapped: reading its lost
// part ends the process (SIGBUS). A file that is replaced, as by rename, stays as it was in the mapping.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Throws DataError with file:offset if the file is shorter now than when it was mapped.
  void check_size() const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

// False also where the file system does not tell, as for names that are too long. Opening such a file says
// why.
bool file_exists(const std::string& path);

}  // namespace fsdp::data
