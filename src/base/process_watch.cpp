#include "base/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace fsdp::detail {

namespace {

bool gone(int64_t pid) { return ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH; }

}  // namespace

ProcessWatch::ProcessWatch(const std::vector<int64_t>& pids) {
  for (const int64_t pid : pids) {
    Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
    const bool dead = !pidfd.valid() && errno == ESRCH;
    peers_.push_back({.pid = pid, .pidfd = std::move(pidfd), .dead = dead});
  }
}

bool ProcessWatch::dead(int index) {
  Watched& peer = peers_[static_cast<size_t>(index)];
  if (!peer.dead) {
    pollfd entry{.fd = peer.pidfd.get(), .events = POLLIN, .revents = 0};
    peer.dead = peer.pidfd.valid() ? ::poll(&entry, 1, 0) == 1 : gone(peer.pid);
  }
  return peer.dead;
}

}  // namespace fsdp::detail
