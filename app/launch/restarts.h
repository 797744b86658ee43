// Starts the ranks again after a failure.
#pragma once

#include "app/launch/supervisor.h"

namespace fsdp::launch {

// run_ranks(), and again while a rank fails and Job::max_restarts allows it. All ranks are started anew, with
// TORCHELASTIC_RESTART_COUNT one higher and, if the port was free to choose, another port. Tells of each
// failure in one line, and returns the last outcome. After a signal to this process nothing is started again.
Outcome run_with_restarts(Job job, const Tell& tell = tell_on_stderr);

}  // namespace fsdp::launch
