// The error of this folder: data that cannot be trained on.
#pragma once

#include <fsdp/error.h>

#include <string>

namespace fsdp::data {

// A token file, text, tokenizer or batch size that cannot be used. The message begins with file:offset or
// file:line where there is one. Files that cannot be opened or read are IoErrors.
class DataError : public Error {
 public:
  using Error::Error;
};

// A text that is not UTF-8. `offset`: of the first byte that belongs to no character, in that text.
class InvalidUtf8 : public DataError {
 public:
  InvalidUtf8(size_t offset, const std::string& message) : DataError(message), offset_(offset) {}
  size_t offset() const { return offset_; }

 private:
  size_t offset_;
};

}  // namespace fsdp::data
