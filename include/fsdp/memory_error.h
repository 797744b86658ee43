// MemoryError: a failed allocation, with the memory that a sharded model holds and options that reduce it.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace fsdp {

// This rank has too little memory. The message says what was requested, what the model holds by kind, and
// which unused options would make it hold less. Thrown for memory of the model itself (shards, slots,
// gradients), for operators inside a call of the model, and in a backward for operators that read a
// parameter. Other operators throw LibTorch's error unchanged.
class MemoryError : public c10::OutOfMemoryError {
 public:
  MemoryError(const std::string& message, int64_t bytes)
      : c10::OutOfMemoryError(message, /*backtrace=*/nullptr, /*caller=*/nullptr), bytes_(bytes) {}

  // Requested bytes; 0 if unknown, as it is for operators.
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
};

}  // namespace fsdp
