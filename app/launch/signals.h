// SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored) as events, instead of the end of this process.
#pragma once

#include <csignal>
#include <string>

#include "app/launch/fd.h"

namespace fsdp::launch {

// While it lives, the calling thread gets these signals through fd(); other threads must have them blocked,
// or there must be none. Signals that the process ignores (nohup) stay ignored. It also makes children
// waitable if the parent of this process had it ignore SIGCHLD. The destructor restores all of it.
class SignalEvents {
 public:
  SignalEvents();
  ~SignalEvents();
  SignalEvents(const SignalEvents&) = delete;
  SignalEvents& operator=(const SignalEvents&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal; 0: none is pending. Never waits.
  int next() const;
  // The mask from before, for programs to start.
  const sigset_t& mask_before() const { return mask_; }

 private:
  sigset_t mask_{};
  struct sigaction children_ {};
  Fd fd_;
};

// From now on a write to a pipe or terminal that nobody reads any more fails, and does not end this process.
// Ctrl-C also ends the `tee` behind a launcher, whose ranks are to save. A handler does it, since programs
// that are started would inherit SIG_IGN.
void survive_broken_pipes();

// "SIGTERM"; "signal 40" if it has no name.
std::string signal_name(int number);

// "was ended by SIGTERM (signal 15): somebody asked it to end, such as ...".
std::string describe_signal(int number);

}  // namespace fsdp::launch
