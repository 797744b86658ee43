// Which process an object belongs to: after a fork() the child holds a copy that is not its own.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace fsdp::detail {

class OwningProcess {
 public:
  bool is_this() const { return ::getpid() == pid_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace fsdp::detail
