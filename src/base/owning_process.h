// The process that an object belongs to: after a fork(), the child's copy is not its own.
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
