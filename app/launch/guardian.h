// Ends what the ranks have started, if the supervisor is killed.
#pragma once

#include <sys/types.h>

#include <string>

#include "app/launch/fd.h"

namespace fsdp::launch {

// Note [The supervisor is killed]
// The kernel kills the ranks themselves (PR_SET_PDEATHSIG), but not the processes that they have started: the
// program behind a shell script, or a data loader. So a second process, the guardian, knows the ranks'
// sessions and holds one end of a socket whose other end only the supervisor has. However the supervisor
// ends, the socket closes; the guardian then kills the process groups of the ranks that are still listed, and
// deletes the temporary folder. It is in a session of its own, so that a signal to the supervisor's group
// leaves it alone.
class Guardian {
 public:
  // Forks. If the supervisor is killed, `folder` is deleted with all that is in it.
  explicit Guardian(const std::string& folder);
  // Ends it: everything was ended in order.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // `group` is the pid of a rank, which leads a process group.
  void watch(pid_t group) const { send(group); }
  void forget(pid_t group) const { send(-group); }

 private:
  void send(pid_t message) const;

  Fd socket_;
  pid_t pid_ = -1;
};

}  // namespace fsdp::launch
