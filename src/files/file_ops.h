// FileOps: all that the library asks of a file system. One small interface, so that tests can fail, tear,
// drop and kill at any operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp::detail {

// An open file. Destruction closes it; close() also reports errors.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Reserves space for a file of this many bytes, if the file system can: IoError if there is too little.
  virtual void reserve(int64_t /*bytes*/) {}
  // Both transfer all bytes, or throw IoError.
  virtual void write(std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual void read(std::span<std::byte> bytes, int64_t offset) const = 0;
  virtual int64_t size() const = 0;
  // Written bytes survive a loss of power.
  virtual void sync() = 0;
  virtual void close() = 0;
};

using FilePtr = std::unique_ptr<OpenFile>;

// Calls throw IoError. Threads: several may use it at once, on different files.
class FileOps {
 public:
  virtual ~FileOps() = default;

  // A new file, for writing: it must not exist.
  virtual FilePtr create(const std::string& path) = 0;
  // An existing regular file, for reading.
  virtual FilePtr open(const std::string& path) const = 0;
  // Makes a folder and those above it, if they do not exist.
  virtual void make_folders(const std::string& path) = 0;
  // Makes a folder that must not exist.
  virtual void make_folder(const std::string& path) = 0;
  // Replaces a file at `to`; a folder there must be empty.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // The names in a folder survive a loss of power from now on.
  virtual void sync_folder(const std::string& path) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_folder(const std::string& path) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) const = 0;
  // A link exists even if its target does not; it is a folder if its target is one.
  virtual bool exists(const std::string& path) const = 0;
  virtual bool is_folder(const std::string& path) const = 0;
  virtual bool is_link(const std::string& /*path*/) const { return false; }
  // The same text for every path to one file or folder; empty: nothing is there. A file or folder that is
  // made later has another identity, as long as a lock() on the earlier one or in it is held.
  virtual std::string identity(const std::string& path) const { return exists(path) ? path : ""; }
  // Locks the file at `path`, which is made if it does not exist, until the returned object is destroyed or
  // the process ends. Processes forked meanwhile do not hold it. Null: another process holds it.
  virtual std::shared_ptr<void> lock(const std::string& path) = 0;
};

FileOps& posix_files();

// Reads a whole small file. Throws IoError if it is larger than `most`.
std::string read_text(const FileOps& files, const std::string& path, int64_t most);
// Writes a new file with this text, and syncs it.
void write_text(FileOps& files, const std::string& path, const std::string& text);
// Removes a folder with its contents, but not the targets of links. Missing files are no error.
void remove_tree(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
