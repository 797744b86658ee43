// The launcher's stdout and stderr, to which the ranks' lines go.
#pragma once

#include <string>

namespace fsdp::launch {

enum class Stream { out, err };

// Errors can be held back: after the first failure the other ranks complain, and the cause should be read
// first.
class Console {
 public:
  // Writes `text`, whole lines. Waits if the reader is slow. Text that cannot be written is dropped.
  void write(Stream stream, const std::string& text);
  // From now on text for stderr is kept, up to 1 MiB.
  void hold_errors() { holding_ = true; }
  const std::string& held() const { return held_; }

 private:
  bool holding_ = false;
  bool full_ = false;
  std::string held_;
};

}  // namespace fsdp::launch
