#include "app/launch/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "app/launch/job.h"
#include "app/launch/spawn.h"

namespace fsdp::launch {

namespace {

// Leaves the supervisor's session, its signals and all of its files but `socket`, which becomes descriptor 0.
void detach(int socket) {
  ::setsid();
  ::prctl(PR_SET_NAME, "fsdp-guardian");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::dup2(socket, STDIN_FILENO);
  close_from(STDIN_FILENO + 1, false);
}

[[noreturn]] void guard(int socket, const std::string& folder) {
  detach(socket);
  std::vector<pid_t> groups;
  pid_t message = 0;
  for (;;) {
    const auto n = ::recv(STDIN_FILENO, &message, sizeof(message), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(message)) break;
    if (message > 0)
      groups.push_back(message);
    else
      std::erase(groups, -message);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian(const std::string& folder) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw LaunchError(std::string("cannot make a socket: ") + std::strerror(errno));
  socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) guard(theirs.get(), folder);
  if (pid_ < 0) throw LaunchError(std::string("cannot start a process: ") + std::strerror(errno));
}

Guardian::~Guardian() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::send(pid_t message) const {
  // Without a guardian, which only somebody else can have ended, the ranks still die with the supervisor.
  [[maybe_unused]] const auto sent = ::send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL);
}

}  // namespace fsdp::launch
