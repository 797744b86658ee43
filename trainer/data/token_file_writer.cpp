#include "trainer/data/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "trainer/data/error.h"
#include "trainer/data/token_file.h"

namespace fsdp::data {

namespace {

constexpr size_t kHeaderBytes = kHeaderWords * sizeof(int32_t);
constexpr size_t kBlockBytes = size_t{1} << 20;

void sync_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError("open", folder, errno);
  const int code = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync a folder; the rename has been made all the same.
  if (code != 0 && code != EINVAL) throw IoError("sync", folder, code);
}

}  // namespace

NewFile::NewFile(std::string path)
    : path_(std::move(path)), partial_(path_ + "." + std::to_string(::getpid()) + ".partial") {
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw IoError("create", partial_, errno);
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void NewFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw IoError("write", partial_, written < 0 ? errno : ENOSPC);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void NewFile::rewind() {
  if (::lseek(fd_, 0, SEEK_SET) != 0) throw IoError("write", partial_, errno);
}

void NewFile::sync() {
  if (::fsync(fd_) != 0) throw IoError("sync", partial_, errno);
}

void NewFile::commit() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) throw IoError("rename", partial_, errno);
  partial_.clear();
  sync_folder_of(path_);
}

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size)
    : file_(path), vocab_size_(vocab_size), width_(vocab_size <= 65536 ? 2 : 4) {
  const std::array<char, kHeaderBytes> room{};
  file_.write(room.data(), room.size());
  buffer_.reserve(kBlockBytes + 8);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add(std::span<const int32_t> tokens, bool counted) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size_)
      throw DataError(path() + ": token " + std::to_string(token) + " is not in the vocabulary of " +
                      std::to_string(vocab_size_) + " tokens");
    const auto word = static_cast<uint32_t>(token);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&word);
    buffer_.insert(buffer_.end(), bytes, bytes + width_);
    if (buffer_.size() >= kBlockBytes) flush();
  }
  add_mask(tokens.size(), counted);
  size_ += static_cast<int64_t>(tokens.size());
  if (counted) counted_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::add_mask(size_t count, bool counted) {
  if (!mask_ && (counted || count == 0)) return;
  const auto write = [this](size_t most, char value) {
    const std::vector<char> values(std::min(most, kBlockBytes), value);
    for (size_t left = most; left > 0; left -= std::min(left, values.size()))
      mask_->write(values.data(), std::min(left, values.size()));
  };
  if (!mask_) {
    mask_ = std::make_unique<NewFile>(path() + ".mask");
    write(static_cast<size_t>(size_), 1);
  }
  write(count, counted ? 1 : 0);
}

void TokenFileWriter::flush() {
  file_.write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void TokenFileWriter::write_header() {
  std::array<int32_t, kHeaderWords> header{};
  header[0] = width_ == 2 ? kMagicUint16 : kMagicUint32;
  header[1] = width_ == 2 ? kVersionUint16 : kVersionUint32;
  header[2] = static_cast<int32_t>(static_cast<uint32_t>(size_));
  header[3] = mask_ ? 1 : 0;
  header[4] = static_cast<int32_t>(size_ >> 32);
  file_.rewind();
  file_.write(header.data(), kHeaderBytes);
}

void TokenFileWriter::sync() {
  flush();
  write_header();
  file_.sync();
  if (mask_) mask_->sync();
}

void TokenFileWriter::commit() {
  // A mask never lies beside a token file that it does not belong to, even after a crash: the old token file
  // goes first, the new one comes last.
  if (::unlink(path().c_str()) != 0 && errno != ENOENT) throw IoError("replace", path(), errno);
  const std::string old_mask = path() + ".mask";
  if (!mask_ && ::unlink(old_mask.c_str()) != 0 && errno != ENOENT) throw IoError("replace", old_mask, errno);
  if (mask_) mask_->commit();
  file_.commit();
}

}  // namespace fsdp::data
