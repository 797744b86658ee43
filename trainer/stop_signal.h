// SIGTERM, SIGUSR1 and SIGINT: once to finish the step, save and leave; twice to leave now.
#pragma once

#include <string>

namespace fsdp::train {

// While it lives, the first such signal is noted. A second one, 250 ms later or more, ends the process at
// once with exit code 128 + its number. One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that came; 0: none.
  static int received();
  // True for SIGTERM and SIGUSR1, which batch systems send before a time limit or a preemption. False for
  // SIGINT: a person wants the run to end.
  static bool asks_for_requeue(int signal);
  // "SIGTERM", "SIGUSR1" or "SIGINT".
  static std::string name(int signal);
};

}  // namespace fsdp::train
