// MemoryError: an allocation failed, with what a sharded model holds and what would make it fit.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace fsdp {

// There is not enough memory on this rank. The message says what was asked for, what the model holds by kind,
// and which options that are not in use would make it hold less. Thrown for memory of the model itself
// (shards, slots, gradients), for operators inside a call of the model, and in a backward for those that read
// a parameter; others throw LibTorch's error as it is.
class MemoryError : public c10::OutOfMemoryError {
 public:
  MemoryError(const std::string& message, int64_t bytes)
      : c10::OutOfMemoryError(message, /*backtrace=*/nullptr, /*caller=*/nullptr), bytes_(bytes) {}

  // What was asked for; 0 where an operator did, which does not say.
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
};

}  // namespace fsdp
