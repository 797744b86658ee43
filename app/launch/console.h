// The launcher's stdout and stderr, to which the ranks' lines go.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::launch {

enum class Stream { out, err };

// Writes `text`, whole lines. What a reader does not take within a second is dropped.
void write_soon(Stream stream, const std::string& text);

// Errors can be held back: after the first failure the other ranks complain, and the cause should be read
// first.
class Console {
 public:
  // When `fd` is readable there is something more important than to wait for a slow reader. Text that the
  // reader does not take within a second is dropped from then on.
  void hurry_for(int fd) { wakers_.push_back(fd); }
  // Writes `text`, whole lines. Waits if the reader is slow. Text that cannot be written is dropped.
  void write(Stream stream, const std::string& text);
  // From now on text for stderr is kept, up to 1 MiB.
  void hold_errors() { holding_ = true; }
  const std::string& held() const { return held_; }

 private:
  void write_all(Stream stream, std::string_view text);

  std::vector<int> wakers_;
  bool hurried_ = false;
  bool holding_ = false;
  bool full_ = false;
  std::string held_;
};

}  // namespace fsdp::launch
