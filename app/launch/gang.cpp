#include "app/launch/gang.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "app/launch/environment.h"
#include "app/launch/spawn.h"

namespace fsdp::launch {

namespace {

constexpr int kSignalBase = 128;
constexpr int kRendezvous = 4;  // exit codes of our ranks, which report another rank's failure
constexpr int kPeerLost = 5;
constexpr int kHighestPort = 65535;
constexpr size_t kLastLines = 12;

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

// Before anything is made.
const Job& checked(const Job& job) {
  const auto refuse = [](const std::string& text) { throw LaunchError(text); };
  if (job.argv.empty()) refuse("there is no program to start");
  if (job.ranks < 1) refuse("cannot start " + std::to_string(job.ranks) + " ranks; at least 1 is expected");
  if (job.node_rank < 0 || job.node_rank >= job.nodes)
    refuse("node rank " + std::to_string(job.node_rank) + " is not below the number of nodes, " +
           std::to_string(job.nodes) + "; nodes count from 0");
  if (job.master_port < 0 || job.master_port > kHighestPort)
    refuse("MASTER_PORT " + std::to_string(job.master_port) + " is not a port");
  if (job.master_port == 0 && (job.nodes > 1 || !is_loopback(job.master_addr)))
    refuse(
        "MASTER_PORT is missing. A free port can be chosen only if all ranks are on one machine and meet at "
        "127.0.0.1; here it is " +
        job.master_addr + " with " + std::to_string(job.nodes) +
        " node(s). Set MASTER_PORT to a port that is free there, the same on all nodes");
  return job;
}

std::string path_variable(const Job& job, const Environment& own) {
  for (const Environment* environment : {&job.environment, &own})
    if (const auto found = environment->find("PATH"); found != environment->end()) return found->second;
  return "/usr/local/bin:/usr/bin:/bin";
}

std::string why_not_started(const StartFailure& failure, const std::string& program) {
  std::string text = "cannot start " + program + ": " + std::strerror(failure.code);
  if (failure.code == ENOEXEC)
    text += ". It is a script without a first line such as #!/bin/sh, or was built for another machine";
  if (failure.code == ENOENT)
    text += ". The interpreter that it names, or its dynamic loader, does not exist";
  return text;
}

Fd watch_process(pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid())
    throw LaunchError(std::string("cannot watch a rank (pidfd_open, Linux 5.3 or newer): ") +
                      std::strerror(errno));
  return pidfd;
}

}  // namespace

Gang::Gang(const Job& job, const sigset_t& signal_mask, Console& console)
    : job_(checked(job)),
      guardian_(errors_.folder()),
      own_(current_environment()),
      program_(find_program(job.argv[0], path_variable(job, own_))),
      processors_(usable_processors()),
      nodes_(usable_processors_by_node()),
      gpus_(usable_gpus(own_) > 0),
      signal_mask_(signal_mask),
      console_(console),
      members_(static_cast<size_t>(job.ranks)) {
  if (job.master_port == 0) port_.emplace();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(std::string("cannot make a pipe: ") + std::strerror(errno));
  started_ = Fd(ends[0]);
  failures_ = Fd(ends[1]);
}

Gang::~Gang() { kill_all(); }

void Gang::open_output(Member& member, int rank) {
  const bool shown = std::find(job_.shown.begin(), job_.shown.end(), rank) != job_.shown.end();
  if (!job_.log_folder.empty() && (job_.relayed || !shown)) {
    const std::string count = std::to_string(job_.restart_count);
    member.log =
        RankLog(job_.log_folder, rank, job_.restart_count > 0 ? "---- restart " + count + " ----" : "");
  }
  if (!job_.relayed) return;
  const auto streams = job_.streams.find(rank);
  const unsigned shows = !shown ? 0 : streams == job_.streams.end() ? kBothStreams : streams->second;
  member.pipes = RankPipes({.rank = rank,
                            .show_out = (shows & kStdout) != 0,
                            .show_err = (shows & kStderr) != 0,
                            .log = member.log.fd()},
                           console_);
}

void Gang::start(int index) {
  const int rank = job_.first_rank() + index;
  const int port = port_ ? port_->number() : job_.master_port;
  Member& member = at(index);
  open_output(member, rank);
  const auto environment = to_assignments(rank_environment(
      job_, index, own_, processors_, port, {.error = errors_.path(rank), .step = errors_.step_path(rank)}));
  const bool piped = member.pipes.exist();
  member.pid =
      start_process({.rank = rank,
                     .program = program_,
                     .argv = job_.argv,
                     .environment = environment,
                     .output = piped ? member.pipes.write_end(Stream::out) : member.log.fd(),
                     .errors = piped ? member.pipes.write_end(Stream::err) : member.log.fd(),
                     .inherited_fds = job_.inherited_fds,
                     .signal_mask = signal_mask_,
                     .processors = processors_of_rank(nodes_, job_.numa_binding, gpus_, index, size()),
                     .failures = failures_.get()});
  guardian_.watch(member.pid);
  if (piped)
    member.pipes.hand_over();
  else
    member.log.hand_over();
  member.pidfd = watch_process(member.pid);
  if (index + 1 == size()) failures_.close();
}

int Gang::running() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [](const Member& member) {
    return member.pid > 0 && !member.ended;
  }));
}

void Gang::check_started() const {
  StartFailure failure;
  ssize_t n = 0;
  while ((n = ::read(started_.get(), &failure, sizeof(failure))) < 0 && errno == EINTR) {
  }
  if (n == sizeof(failure)) throw LaunchError(why_not_started(failure, job_.argv[0]));
}

void Gang::ask(int index) {
  at(index).asked = true;
  ::syscall(SYS_pidfd_send_signal, pidfd(index), SIGTERM, nullptr, 0);
  ::syscall(SYS_pidfd_send_signal, pidfd(index), SIGCONT, nullptr, 0);
}

void Gang::kill(int index, EndKind why) {
  if (!at(index).killed) at(index).killed = why;
  ::kill(-at(index).pid, SIGKILL);
  ::kill(at(index).pid, SIGKILL);  // it may not lead a group yet
}

bool Gang::is_stopped(int index) const {
  std::ifstream file("/proc/" + std::to_string(at(index).pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  return text[name_end + 2] == 'T' || text[name_end + 2] == 't';
}

RankEnd Gang::reap(int index) {
  Member& member = at(index);
  ::kill(-member.pid, SIGKILL);  // until it is reaped, its number is nobody else's
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(member.pid, &status, 0)) < 0 && errno == EINTR) {
  }
  member.ended = true;
  if (member.pipes.exist()) member.pipes.finish();
  guardian_.forget(member.pid);
  return describe_end(index, reaped == member.pid, status);
}

RankEnd Gang::describe_end(int index, bool known, int status) const {
  const Member& member = at(index);
  RankEnd end{.rank = job_.first_rank() + index, .log = member.log.path()};
  end.step = errors_.read_step(end.rank);
  end.signal = known && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end.exit_code = end.signal != 0 ? kSignalBase + end.signal : known ? WEXITSTATUS(status) : 1;
  if (!end.failed()) return end;
  Message message = errors_.read(end.rank);
  end.message = std::move(message.text);
  end.culprit = message.culprit;
  end.last_lines =
      member.pipes.exist() ? member.pipes.last_lines(kLastLines) : member.log.last_lines(kLastLines);
  for (const std::string& line : end.last_lines)
    if (end.message.empty() && end.culprit < 0) end.culprit = blamed_rank(line, end.rank);
  const bool by_term = end.exit_code == kSignalBase + SIGTERM || end.exit_code == kSignalBase + SIGINT;
  if (member.killed && end.signal == SIGKILL)
    end.kind = *member.killed;
  else if (member.asked && by_term)
    end.kind = EndKind::asked;
  else if (end.culprit >= 0 || end.exit_code == kPeerLost || end.exit_code == kRendezvous)
    end.kind = EndKind::peer;
  return end;
}

void Gang::kill_all() {
  for (int i = 0; i < size(); ++i)
    if (at(i).pid > 0 && !ended(i)) kill(i, EndKind::killed);
  for (int i = 0; i < size(); ++i)
    if (at(i).pid > 0 && !ended(i)) reap(i);
}

}  // namespace fsdp::launch
