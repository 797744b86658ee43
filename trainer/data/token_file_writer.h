// Writes a token file, and its mask where one is needed. See Note [Token files].
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/token_source.h"

namespace fsdp::data {

// A file that gets its name once it is whole: until commit() the bytes lie beside it, and the destructor
// deletes them. Throws IoError where something cannot be written.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, size_t bytes);
  // The next write() begins at offset 0.
  void rewind();
  // A full disk is found here; commit() then only renames.
  void sync();
  void commit();

 private:
  std::string path_, partial_;
  int fd_ = -1;
};

// uint16 if the vocabulary has at most 65,536 tokens, else uint32. Call sync(), then commit(), which gives
// the files their names; without commit() nothing is left. Throws IoError, and DataError for a token outside
// the vocabulary.
class TokenFileWriter final : public TokenSink {
 public:
  TokenFileWriter(const std::string& path, int64_t vocab_size);
  ~TokenFileWriter() override;

  void add(std::span<const int32_t> tokens, bool counted) override;
  void sync();
  void commit();

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return size_; }
  int64_t counted() const { return counted_; }  // tokens that count in the loss
  int width() const { return width_; }          // bytes per token

 private:
  void flush();
  void write_header();
  void add_mask(size_t count, bool counted);

  NewFile file_;
  std::unique_ptr<NewFile> mask_;  // made by the first token that does not count
  int64_t vocab_size_;
  int width_;
  int64_t size_ = 0, counted_ = 0;
  std::vector<unsigned char> buffer_;
};

}  // namespace fsdp::data
