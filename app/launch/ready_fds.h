// Waits for descriptors.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "app/launch/fd.h"

namespace fsdp::launch {

// Descriptors, each with a number: its tag. They become ready in the order in which something happened: the
// ranks' ends come in the order in which they died.
class ReadyFds {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws LaunchError, and so does add().
  ReadyFds();
  // Ready when `fd` is readable.
  void add(int fd, int tag) const;
  // Ready when `fd` takes text. False: it always does, as files do.
  bool add_writer(int fd, int tag) const;
  void remove(int fd) const;
  // The tags, at the latest when `until` has come.
  std::vector<int> wait(std::optional<Time> until) const;

 private:
  bool try_add(int fd, int tag, uint32_t events) const;

  Fd epoll_;
};

}  // namespace fsdp::launch
