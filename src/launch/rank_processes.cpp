#include "launch/rank_processes.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "launch/enter.h"

namespace fsdp::detail {

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr int kFailedExit = 1;

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const auto n = ::write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  return text;
}

// The life of a rank. Never returns: what the parent registered to run at exit is not the child's to run.
[[noreturn]] void live(const Identity& me, const std::function<void(World&)>& fn, const InitOptions& options,
                       int errors) {
  int code = 0;
  try {
    World world = enter(
        me, connect_store(me.master_addr, me.master_port, options.timeout, "rank " + std::to_string(me.rank)),
        options);
    fn(world);
  } catch (const std::exception& error) {
    write_all(errors, error.what());
    code = kFailedExit;
  } catch (...) {
    write_all(errors, "an exception of unknown type");
    code = kFailedExit;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

RankProcesses::RankProcesses(int ranks, const std::function<void(World&)>& fn, const InitOptions& options) {
  if (ranks < 1) throw Error("run_local needs at least one rank, not " + std::to_string(ranks));
  Listener listener = listen_on(kLoopback, 0);
  std::fflush(nullptr);  // or every child prints what is buffered again
  for (int r = 0; r < ranks; ++r) start(r, ranks, fn, options, listener);
  // Served only now: the server's thread would not survive a fork. Ranks that connect before wait in the
  // backlog.
  store_ = serve_store(kLoopback, std::move(listener), options.timeout);
}

RankProcesses::~RankProcesses() {
  for (int r = 0; r < size(); ++r)
    if (!ended(r)) signal(r, SIGKILL);
  while (wait_any(Milliseconds{1000}) >= 0) {
  }
}

void RankProcesses::start(int rank, int ranks, const std::function<void(World&)>& fn,
                          const InitOptions& options, const Listener& listener) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
  Fd ours(ends[0]);
  Fd theirs(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error("cannot start rank " + std::to_string(rank) + ": " + std::strerror(errno));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kFailedExit);
    ::close(listener.fd.get());
    Identity me;
    me.rank = rank;
    me.size = ranks;
    me.local_rank = rank;
    me.local_size = ranks;
    me.source = "run_local";
    me.master_addr = kLoopback;
    me.master_port = listener.port;
    live(me, fn, options, theirs.get());
  }
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid())
    throw Error(std::string("cannot watch a rank (pidfd_open, Linux 5.3 or newer): ") + std::strerror(errno));
  children_.push_back(
      {.pid = pid, .pidfd = std::move(pidfd), .errors = std::move(ours), .ended = false, .outcome = {}});
}

void RankProcesses::signal(int rank, int number) const {
  ::syscall(SYS_pidfd_send_signal, children_[static_cast<size_t>(rank)].pidfd.get(), number, nullptr, 0);
}

void RankProcesses::reap(Child& child, int rank) {
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  child.ended = true;
  child.outcome.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  child.outcome.error = read_all(child.errors.get());
  if (child.outcome.exit_code != 0 && first_failed_ < 0) first_failed_ = rank;
}

int RankProcesses::wait_any(Milliseconds time) {
  std::vector<pollfd> entries;
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (ended(r)) continue;
    entries.push_back({.fd = children_[static_cast<size_t>(r)].pidfd.get(), .events = POLLIN, .revents = 0});
    ranks.push_back(r);
  }
  if (entries.empty() || ::poll(entries.data(), entries.size(), static_cast<int>(time.count())) <= 0)
    return -1;
  const auto it =
      std::find_if(entries.begin(), entries.end(), [](const pollfd& e) { return e.revents != 0; });
  const int rank = ranks[static_cast<size_t>(it - entries.begin())];
  reap(children_[static_cast<size_t>(rank)], rank);
  return rank;
}

void RankProcesses::wait_all(Milliseconds grace) {
  const auto running = [&] {
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return !c.ended; });
  };
  Clock::time_point failed_at;
  while (running()) {
    const bool failed = first_failed_ >= 0;
    wait_any(Milliseconds{100});
    if (!failed && first_failed_ >= 0) failed_at = Clock::now();
    if (first_failed_ < 0 || elapsed_since(failed_at) < grace) continue;
    for (int r = 0; r < size(); ++r)
      if (!ended(r)) signal(r, SIGKILL);
  }
}

}  // namespace fsdp::detail

namespace fsdp {

void run_local(int ranks, const std::function<void(World&)>& fn, const InitOptions& options) {
  constexpr detail::Milliseconds kGrace{10000};
  detail::RankProcesses processes(ranks, fn, options);
  processes.wait_all(kGrace);
  const int failed = processes.first_failed();
  if (failed < 0) return;
  const RankOutcome& outcome = processes.outcome(failed);
  const std::string how = outcome.exit_code > 128
                              ? "was ended by signal " + std::to_string(outcome.exit_code - 128)
                              : "failed with exit code " + std::to_string(outcome.exit_code);
  throw Error("rank " + std::to_string(failed) + " of " + std::to_string(ranks) + " " + how +
              (outcome.error.empty() ? "" : ": " + outcome.error));
}

}  // namespace fsdp
