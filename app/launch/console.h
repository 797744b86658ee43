// The launcher's stdout and stderr, to which the ranks' lines go.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::launch {

enum class Stream { out, err };

// Writes `text`, whole lines, at once. What a reader does not take within a second is dropped.
void write_soon(Stream stream, const std::string& text);

// Lines wait here for a slow reader, so that the launcher never does. Errors can be held back: after the
// first failure the other ranks complain, and the cause should be read first.
class Console {
 public:
  // Takes `text`, whole lines. Never waits.
  void write(Stream stream, const std::string& text);
  // Writes what the readers take now. Text that cannot be written at all is dropped.
  void pump();
  // Text waits for a reader of this descriptor; -1: none does.
  int waits_for(Stream stream) const;
  // So much waits that no more should come. Never in a hurry.
  bool is_crowded() const { return !hurries_ && (is_full(Stream::out) || is_full(Stream::err)); }
  // From now on there is something more important than a slow reader, who may lose text.
  void hurry() { hurries_ = true; }
  // Writes what waits, and returns once it is written. In a hurry, which begins when a descriptor of `wakers`
  // is readable, a reader that takes nothing for a second loses the rest.
  void finish(const std::vector<int>& wakers);
  // From now on text for stderr is kept, up to 1 MiB.
  void hold_errors() { holding_ = true; }
  const std::string& held() const { return held_; }

 private:
  struct Waiting {
    std::string text;
    size_t written = 0;

    std::string_view left() const { return std::string_view(text).substr(written); }
  };

  bool is_full(Stream stream) const;

  std::array<Waiting, 2> waiting_;  // by stream
  bool hurries_ = false;
  bool holding_ = false;
  bool full_ = false;
  std::string held_;
};

}  // namespace fsdp::launch
