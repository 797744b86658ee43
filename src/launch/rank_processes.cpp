#include "launch/rank_processes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
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
#include <fstream>
#include <iostream>

#include "base/log.h"
#include "launch/enter.h"
#include "launch/failure.h"

namespace fsdp::detail {

namespace {

constexpr const char* kThisHost = "127.0.0.1";
constexpr int kFailedExit = 1;
constexpr Milliseconds kStoppedGrace{1000};

// Note [Last words]
// A rank writes one byte before it ends: kDone; kFailed for an exception of its own; kFailedByOther for one
// that reports another rank's failure, even if TorchScript or user code wrapped its message in another type.
// The text of the exception follows, cut so that it fits into the pipe. The parent reads it when the rank has
// ended, and never waits for it.
constexpr char kDone = 'd';
constexpr char kFailed = 'f';
constexpr char kFailedByOther = 'o';
constexpr size_t kMaxWords = 32 * 1024;

void say(int fd, char verdict, const std::string& text) {
  const std::string words = verdict + text.substr(0, kMaxWords);
  [[maybe_unused]] const auto written = ::write(fd, words.data(), words.size());
}

std::string hear(int fd) {
  std::string words(kMaxWords + 1, '\0');
  const auto n = ::read(fd, words.data(), words.size());
  words.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return words;
}

// True if the process is stopped: by SIGSTOP, or by a debugger.
bool is_stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

// Runs a rank. Never returns, so that the child does not run the parent's exit handlers.
[[noreturn]] void live(const Identity& me, const std::function<void(World&)>& fn, const InitOptions& options,
                       int words) {
  bool done = false;
  std::shared_ptr<FirstCause> cause = std::make_shared<FirstCause>();
  const auto say_failed = [&](const std::string& text) {
    const std::string first = cause->get().reason;
    const bool quoted = !first.empty() && text.find(first) != std::string::npos;
    say(words, quoted ? kFailedByOther : kFailed, text);
  };
  try {
    // After a fork LibTorch makes its thread pool anew at the first call, without a lock; with several
    // devices that would be autograd's threads, all at once.
    at::init_num_threads();
    log_identity(me);
    World world = enter(
        me, connect_store(me.master_addr, me.master_port, options.timeout, "rank " + std::to_string(me.rank)),
        options);
    cause = world.state().cause;
    fn(world);
    done = true;
    say(words, kDone, "");
  } catch (const CommError& error) {
    say(words, kFailedByOther, error.what());
  } catch (const RendezvousError& error) {
    say(words, kFailedByOther, error.what());
  } catch (const c10::Error& error) {
    say_failed(message_of(error));
  } catch (const std::exception& error) {
    say_failed(error.what());
  } catch (...) {
    say(words, kFailed, "an exception of unknown type");
  }
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  ::_exit(done ? 0 : kFailedExit);
}

}  // namespace

RankProcesses::RankProcesses(int ranks, const std::function<void(World&)>& fn, const InitOptions& options)
    : ranks_(ranks) {
  if (ranks < 1) throw Error("run_local needs at least one rank, not " + std::to_string(ranks));
  read_log_level();
  Listener listener = listen_on(kThisHost, 0);
  std::cout.flush();  // or every child would print the buffered text again
  std::fflush(nullptr);
  try {
    for (int r = 0; r < ranks; ++r) start(r, ranks, fn, options, listener);
    // The server starts only now: its thread would not survive a fork. Ranks that connect earlier wait in the
    // backlog.
    store_ = serve_store(kThisHost, std::move(listener), options.timeout);
  } catch (...) {
    end_all();
    throw;
  }
}

RankProcesses::~RankProcesses() { end_all(); }

void RankProcesses::end_all() {
  for (int r = 0; r < size(); ++r) {
    Child& child = children_[static_cast<size_t>(r)];
    if (child.ended) continue;
    ::kill(child.pid, SIGKILL);
    reap(child, r);
  }
}

void RankProcesses::end(int rank) {
  children_[static_cast<size_t>(rank)].told_to_end = true;
  signal(rank, SIGKILL);
}

void RankProcesses::start(int rank, int ranks, const std::function<void(World&)>& fn,
                          const InitOptions& options, const Listener& listener) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
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
    me.master_addr = kThisHost;
    me.master_port = listener.port;
    live(me, fn, options, theirs.get());
  }
  children_.push_back({.pid = pid, .pidfd = {}, .words = std::move(ours), .outcome = {}});
  children_.back().pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!children_.back().pidfd.valid())
    throw Error(std::string("cannot watch a rank (pidfd_open, Linux 5.3 or newer): ") + std::strerror(errno));
}

void RankProcesses::signal(int rank, int number) const {
  ::syscall(SYS_pidfd_send_signal, children_[static_cast<size_t>(rank)].pidfd.get(), number, nullptr, 0);
}

// If somebody else reaps our children (SIGCHLD ignored, say), the last words still tell the outcome.
void RankProcesses::reap(Child& child, int rank) {
  int status = 0;
  const bool known = ::waitpid(child.pid, &status, 0) == child.pid;
  const std::string words = hear(child.words.get());
  RankOutcome& outcome = child.outcome;
  child.ended = true;
  if (known && WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.exit_code = known ? (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + outcome.signal)
                            : (words.starts_with(kDone) ? 0 : kFailedExit);
  outcome.secondary = words.starts_with(kFailedByOther);
  if (outcome.secondary || words.starts_with(kFailed)) outcome.error = words.substr(1);
  outcome.killed = child.told_to_end && outcome.signal == SIGKILL && words.empty();
  if (outcome.failed()) {
    failed_.push_back(rank);
    log_debug([&] { return describe(rank); });
  }
}

std::string RankProcesses::describe(int rank) const {
  const RankOutcome& how = outcome(rank);
  if (!how.error.empty()) return name_rank(how.error, rank, ranks_, " failed");
  const std::string name = "rank " + std::to_string(rank) + " of " + std::to_string(ranks_) + " ";
  if (how.killed) return name + "was killed, because another rank had failed";
  return name + (how.signal != 0 ? describe_signal(how.signal)
                                 : "ended with exit code " + std::to_string(how.exit_code));
}

int RankProcesses::cause() const {
  const auto remote = [&](int rank) { return outcome(rank).killed ? 2 : outcome(rank).secondary ? 1 : 0; };
  const auto nearest =
      std::min_element(failed_.begin(), failed_.end(), [&](int a, int b) { return remote(a) < remote(b); });
  if (nearest == failed_.end()) return -1;
  const std::string& error = outcome(*nearest).error;
  const int named = rank_named_first(error);
  return named >= 0 && named < size() && outcome(named).error == error ? named : *nearest;
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
    const bool failed = !failed_.empty();
    wait_any(Milliseconds{100});
    if (!failed && !failed_.empty()) failed_at = Clock::now();
    if (failed_.empty() || elapsed_since(failed_at) < std::min(grace, kStoppedGrace)) continue;
    const bool over = elapsed_since(failed_at) >= grace;
    for (int r = 0; r < size(); ++r)
      if (!ended(r) && (over || is_stopped(pid(r)))) end(r);
  }
}

}  // namespace fsdp::detail

namespace fsdp {

void run_local(int ranks, const std::function<void(World&)>& fn, const InitOptions& options) {
  constexpr detail::Milliseconds kGrace{10000};
  detail::RankProcesses processes(ranks, fn, options);
  processes.wait_all(kGrace);
  const int failed = processes.cause();
  if (failed < 0) return;
  const detail::RankOutcome& outcome = processes.outcome(failed);
  throw RankError(processes.describe(failed), failed, outcome.exit_code, outcome.signal);
}

}  // namespace fsdp
