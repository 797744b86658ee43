// SIGTERM and SIGINT: once to finish the step, save and leave; twice to leave now.
#pragma once

#include <string>

namespace fsdp::train {

// While it lives, the first SIGTERM or SIGINT is noted and the second ends the process at once with exit code
// 143 or 130. One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that came; 0: none.
  static int received();
  // "SIGTERM" or "SIGINT".
  static std::string name(int signal);
};

}  // namespace fsdp::train
