// Keeps two `fsdp train` out of one folder.
#pragma once

#include <string>

#include "app/launch/fd.h"

namespace fsdp::app {

// Held until the process ends, however it ends. Two that start at the same time both find no run in the
// folder, and two that resume it would write into each other's metrics.
class RunLock {
 public:
  // Makes the folder. An empty name locks nothing, nor does a file system without locks. A file server keeps
  // the lock of a machine that is gone for a while: with `waits` up to two minutes are spent on that. Throws
  // IoError.
  RunLock(const std::string& folder, bool waits);

  // Another process has the folder.
  bool is_taken() const { return taken_; }

  // The program that this process becomes has the lock too.
  void keep_on_exec() const;

 private:
  launch::Fd fd_;
  bool taken_ = false;
};

}  // namespace fsdp::app
