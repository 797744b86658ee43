// The folder of a run, and what it begins with: its own checkpoint, the stage before, or nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/resolve.h"

namespace fsdp::app {

struct RunRequest {
  std::string folder;            // empty is refused
  bool is_folder_given = false;  // by --run
  bool resume = false;           // go on with what is there
  std::string restart = {};      // "restart 1 of Slurm job 7", if that is why; without resume: of another run
  bool starts = true;            // false: --dry-run
  bool is_first =
      true;  // this process looks at the folder: on others the first node may have made it already
};

struct RunChoice {
  std::string folder;  // empty: nothing is kept
  bool resume = false;

  // Folder of the ranks' logs; empty: their output is not kept.
  std::string log_folder() const;
};

// Adds a problem for a folder that has a run already, if it is not to be resumed. A stage after the first
// starts from the run of the stage before it, beside it or in its usual place: sets training.init_from, and
// adds a note. Without such a run it adds a problem, if ranks are to be started.
RunChoice choose_run(const RunRequest& request, config::Resolution& resolved,
                     std::vector<std::string>& problems);

}  // namespace fsdp::app
