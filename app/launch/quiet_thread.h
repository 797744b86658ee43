// Threads that no signal is delivered to: the main thread handles them all.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace fsdp::launch {

// Starts `run` on a thread with all signals blocked.
template <typename Run>
std::thread quiet_thread(Run run) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace fsdp::launch
