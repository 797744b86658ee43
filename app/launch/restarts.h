// Starts the ranks again after a failure.
#pragma once

#include <cstdint>

#include "app/launch/supervisor.h"

namespace fsdp::launch {

// Note [Crash loops]
// A run that fails in the same step each time it is started will not get past it: data that cannot be read, a
// loss that is not finite, a tensor that does not fit. Ranks write the number of their step to FSDP_STEP_FILE
// as they begin it. The third failure in a row in one step ends the run, however many restarts are left.
// Ranks that write no step are started again as often as is allowed.
class CrashLoop {
 public:
  // A start failed in `step`; -1: not known. True: it is the third in a row that failed there.
  bool add(int64_t step);

 private:
  int64_t step_ = -1;
  int times_ = 0;
};

// run_ranks(), and again while a rank fails and Job::max_restarts allows it. All ranks are started anew, with
// TORCHELASTIC_RESTART_COUNT one higher and, if the port was free to choose, another port. Tells of each
// failure in one line, and returns the last outcome. After a signal to this process nothing is started again.
Outcome run_with_restarts(Job job, const Tell& tell = tell_on_stderr);

}  // namespace fsdp::launch
