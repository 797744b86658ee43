#include "trainer/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace fsdp::train {

namespace {

std::atomic<int> noted{0};
struct sigaction before_term, before_int;

void note(int signal) {
  int none = 0;
  if (!noted.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
}

}  // namespace

StopSignal::StopSignal() {
  noted = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &before_term);
  ::sigaction(SIGINT, &action, &before_int);
}

StopSignal::~StopSignal() {
  ::sigaction(SIGTERM, &before_term, nullptr);
  ::sigaction(SIGINT, &before_int, nullptr);
}

int StopSignal::received() { return noted.load(); }

std::string StopSignal::name(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace fsdp::train
