// Everything the library asks of a file system. One small interface, so that tests can fail, tear, drop and
// kill at any operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp::detail {

// An open file. Closed when destroyed; close() says what went wrong.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Sets room aside for a file of this many bytes, where the file system can: IoError if there is too little.
  virtual void reserve(int64_t /*bytes*/) {}
  // All of it, or IoError.
  virtual void write(std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual void read(std::span<std::byte> bytes, int64_t offset) const = 0;
  virtual int64_t size() const = 0;
  // What was written survives a loss of power.
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
  // A folder and those above it, where they do not exist.
  virtual void make_folders(const std::string& path) = 0;
  // A folder that must not exist.
  virtual void make_folder(const std::string& path) = 0;
  // Replaces a file at `to`; a folder there must be empty.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // The names in a folder survive a loss of power.
  virtual void sync_folder(const std::string& path) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_folder(const std::string& path) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) const = 0;
  // A link is there even if what it leads to is not; it is a folder if it leads to one.
  virtual bool exists(const std::string& path) const = 0;
  virtual bool is_folder(const std::string& path) const = 0;
  virtual bool is_link(const std::string& /*path*/) const { return false; }
  // The same text for every path that leads to one file or folder; empty: nothing is there. A file or folder
  // that is made later has another one, as long as a lock() on it or in it is held.
  virtual std::string identity(const std::string& path) const { return exists(path) ? path : ""; }
  // Locks the file at `path`, made where it does not exist, until what is returned is destroyed or the
  // process ends. Processes forked meanwhile do not hold it. Null: another holds it.
  virtual std::shared_ptr<void> lock(const std::string& path) = 0;
};

FileOps& posix_files();

// The whole of a small file. Throws IoError if it is larger than `most`.
std::string read_text(const FileOps& files, const std::string& path, int64_t most);
// A new file with this text, synced.
void write_text(FileOps& files, const std::string& path, const std::string& text);
// A folder with what is in it, but not what links lead to. What is gone already is no error.
void remove_tree(FileOps& files, const std::string& path);

}  // namespace fsdp::detail
