#include "trainer/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>

namespace fsdp::train {

namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};
constexpr int64_t kRepeat = 250;  // milliseconds: a terminal and a launcher may both send the first

std::atomic<int> noted{0};
std::atomic<int64_t> noted_at{0};
std::array<struct sigaction, kSignals.size()> before;

int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

void note(int signal) {
  const int64_t now = milliseconds();
  int64_t never = 0;
  if (noted_at.compare_exchange_strong(never, now))
    noted = signal;
  else if (now - noted_at > kRepeat)
    ::_exit(128 + signal);
}

}  // namespace

StopSignal::StopSignal() {
  noted = 0;
  noted_at = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before[i]);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
}

int StopSignal::received() { return noted.load(); }

bool StopSignal::asks_for_requeue(int signal) { return signal == SIGTERM || signal == SIGUSR1; }

std::string StopSignal::name(int signal) {
  return signal == SIGINT ? "SIGINT" : signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

}  // namespace fsdp::train
