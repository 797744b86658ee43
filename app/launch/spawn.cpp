#include "app/launch/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fsdp::launch {

namespace {

constexpr int kCannotExecute = 127;

// 0, or the errno that executing `path` would give.
int reason_not_to_run(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return errno;
  if (S_ISDIR(found.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

std::string advice(int code) {
  switch (code) {
    case EACCES:
      return ". It is not executable: chmod +x";
    case EISDIR:
      return ". Name a program in it";
    case ENOENT:
      return ". Check the path and the current folder";
    default:
      return "";
  }
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  list.reserve(strings.size() + 1);
  for (const std::string& one : strings) list.push_back(const_cast<char*>(one.c_str()));
  list.push_back(nullptr);
  return list;
}

bool redirect(int output, int errors) {
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0) return false;
  return (output < 0 || ::dup2(output, STDOUT_FILENO) >= 0) &&
         (errors < 0 || ::dup2(errors, STDERR_FILENO) >= 0);
}

bool keep_open(const std::vector<int>& fds) {
  return std::all_of(fds.begin(), fds.end(), [](int fd) { return ::fcntl(fd, F_SETFD, 0) == 0; });
}

// A set of processors of any size. Empty: no set.
std::vector<cpu_set_t> set_of(const std::vector<int>& processors) {
  if (processors.empty()) return {};
  const int most = *std::max_element(processors.begin(), processors.end());
  std::vector<cpu_set_t> set(static_cast<size_t>(most) / CPU_SETSIZE + 1);
  const size_t bytes = set.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, set.data());
  for (const int one : processors) CPU_SET_S(one, bytes, set.data());
  return set;
}

// In the child. Calls only what is safe after a fork of a process with threads.
[[noreturn]] void become(const Start& start, pid_t parent, char* const* argv, char* const* environment,
                         const std::vector<cpu_set_t>& processors) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotExecute);  // the parent died before prctl()
  ::setsid();
  // Where the system does not allow it, the rank runs anywhere.
  if (!processors.empty()) ::sched_setaffinity(0, processors.size() * sizeof(cpu_set_t), processors.data());
  if (redirect(start.output, start.errors)) {
    close_from(STDERR_FILENO + 1, true);
    if (keep_open(start.inherited_fds)) {
      ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
      ::execve(start.program.c_str(), argv, environment);
    }
  }
  const StartFailure failure{.rank = start.rank, .code = errno};
  [[maybe_unused]] const auto written = ::write(start.failures, &failure, sizeof(failure));
  ::_exit(kCannotExecute);
}

}  // namespace

std::string find_program(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) {
    const int code = reason_not_to_run(name);
    if (code != 0) throw LaunchError("cannot run " + name + ": " + std::strerror(code) + advice(code));
    return name;
  }
  for (size_t begin = 0; !name.empty() && begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = end == begin ? "." : path.substr(begin, end - begin);
    if (reason_not_to_run(folder + "/" + name) == 0) return folder + "/" + name;
    begin = end + 1;
  }
  throw LaunchError("cannot run '" + name + "': no folder of PATH has such a program" +
                    (reason_not_to_run("./" + name) == 0 ? ". The current folder has: type ./" + name : ""));
}

void close_from(int first, bool on_exec) {
  constexpr unsigned kOnExec = 1U << 2;  // CLOSE_RANGE_CLOEXEC
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, on_exec ? kOnExec : 0U) == 0) return;
#endif
  rlimit limit{};  // a kernel before 5.11, or a sandbox
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536;
  const int end = known ? static_cast<int>(limit.rlim_cur) : 65536;
  for (int fd = first; fd < end; ++fd) {
    if (on_exec)
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    else
      ::close(fd);
  }
}

pid_t start_process(const Start& start) {
  const std::vector<char*> argv = pointers(start.argv), environment = pointers(start.environment);
  const std::vector<cpu_set_t> processors = set_of(start.processors);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(start, parent, argv.data(), environment.data(), processors);
  if (pid < 0)
    throw LaunchError("cannot start rank " + std::to_string(start.rank) + ": " + std::strerror(errno) +
                      ". Processes may be limited (ulimit -u, a container's limit), or memory");
  return pid;
}

}  // namespace fsdp::launch
