#include "app/launch/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "app/launch/job.h"

namespace fsdp::launch {

namespace {

struct Signal {
  int number;
  const char* name;
  const char* how;
  const char* why;
};

constexpr const char* kEnded = "was ended by ";
constexpr const char* kCrashed = "crashed with ";

constexpr std::array kSignals{
    Signal{SIGABRT, "SIGABRT", kEnded,
           "abort() was called: nobody caught an exception, or an assertion failed"},
    Signal{SIGALRM, "SIGALRM", kEnded, "a timer of its own ran out"},
    Signal{SIGBUS, "SIGBUS", kCrashed, "a mapped file was truncated, or its disk or /dev/shm is full"},
    Signal{SIGFPE, "SIGFPE", kCrashed, "an integer was divided by zero"},
    Signal{SIGHUP, "SIGHUP", kEnded, "its terminal was closed"},
    Signal{SIGILL, "SIGILL", kCrashed, "this CPU does not have an instruction of the program"},
    Signal{SIGINT, "SIGINT", kEnded, "somebody pressed Ctrl-C"},
    Signal{SIGKILL, "SIGKILL", kEnded,
           "the kernel's out-of-memory killer may have chosen it (see dmesg), or somebody killed it"},
    Signal{SIGPIPE, "SIGPIPE", kEnded, "it wrote to a pipe or socket that nobody reads any more"},
    Signal{SIGQUIT, "SIGQUIT", kEnded, "somebody pressed Ctrl-\\"},
    Signal{SIGSEGV, "SIGSEGV", kCrashed, "it used memory that is not mapped, or its stack overflowed"},
    Signal{SIGSYS, "SIGSYS", kCrashed, "it made a system call that a sandbox forbids"},
    Signal{SIGTERM, "SIGTERM", kEnded, "somebody asked it to end, such as a batch system at its time limit"},
    Signal{SIGTRAP, "SIGTRAP", kCrashed, "it met a breakpoint without a debugger"},
    Signal{SIGUSR1, "SIGUSR1", kEnded, "somebody sent it, and the program has no handler"},
    Signal{SIGUSR2, "SIGUSR2", kEnded, "somebody sent it, and the program has no handler"},
    Signal{SIGXCPU, "SIGXCPU", kEnded, "it used more processor time than its limit (ulimit -t)"},
    Signal{SIGXFSZ, "SIGXFSZ", kEnded, "it wrote a file larger than its limit (ulimit -f)"},
};

const Signal* find(int number) {
  const auto* at = std::find_if(kSignals.begin(), kSignals.end(),
                                [&](const Signal& signal) { return signal.number == number; });
  return at == kSignals.end() ? nullptr : at;
}

bool is_ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

SignalEvents::SignalEvents() {
  survive_broken_pipes();
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) ::sigaddset(&watched, number);
  if (!is_ignored(SIGHUP)) ::sigaddset(&watched, SIGHUP);  // nohup ignores it
  fd_ = Fd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid()) throw LaunchError(std::string("cannot watch signals: ") + std::strerror(errno));
  ::pthread_sigmask(SIG_BLOCK, &watched, &mask_);
  struct sigaction waitable {};
  waitable.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &waitable, &children_);
}

SignalEvents::~SignalEvents() {
  ::sigaction(SIGCHLD, &children_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
}

int SignalEvents::next() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

void survive_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction quiet {};
  quiet.sa_handler = [](int) {};
  quiet.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &quiet, nullptr);
}

std::string signal_name(int number) {
  const Signal* known = find(number);
  return known != nullptr ? known->name : "signal " + std::to_string(number);
}

std::string describe_signal(int number) {
  const Signal* known = find(number);
  const std::string signal = "signal " + std::to_string(number);
  if (known == nullptr) return kEnded + signal + " (" + ::strsignal(number) + ")";
  return std::string(known->how) + known->name + " (" + signal + "): " + known->why;
}

}  // namespace fsdp::launch
