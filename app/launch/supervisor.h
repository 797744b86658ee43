// Starts the ranks of a job on this machine, watches them, and ends them all when one fails.
#pragma once

#include <functional>
#include <string>

#include "app/launch/job.h"
#include "app/launch/outcome.h"

namespace fsdp::launch {

// Gets a line without its end: what the supervisor waits for, or does. Called by run_ranks' thread.
using Tell = std::function<void(const std::string&)>;

// To stderr, after "fsdp: ".
void tell_on_stderr(const std::string& line);

// Note [Ending ranks]
// Ranks notice a failed peer by their own means within milliseconds, and say so better than a launcher can.
// So after the first failure the others get Patience::alone to end; then SIGTERM; after Patience::term
// SIGKILL. A stopped rank can do nothing: it is killed after Patience::stopped. SIGINT, SIGTERM, SIGUSR1 or
// SIGHUP to this process is passed on as SIGTERM, once: ranks finish their step, save and leave, however long
// that takes, and their exit codes count. A stopped rank is continued for that. A second one, later than
// Patience::repeat, kills the ranks. A rank leads a session of its own, and signals go to the rank alone: a
// data loader must outlive the last save. When a rank has ended, SIGKILL ends whatever it has left in its
// process group.

// The link to the launchers of other nodes, through which failures are told both ways.
class Elsewhere {
 public:
  enum class Word {
    none,
    failed,  // a rank failed on another node: the ranks here are ended as after a failure here
    leave,   // the ranks here are asked to save and leave
  };
  virtual ~Elsewhere() = default;
  virtual int fd() const = 0;           // readable when there may be a word
  virtual Word next() = 0;              // never waits
  virtual std::string why() const = 0;  // of the last word
  virtual void failed_here() = 0;
};

// Returns when all ranks have ended. Throws LaunchError if the program cannot be started or `job` makes no
// sense, and IoError if a log cannot be opened; no rank is left then. Prints nothing but through `tell`: what
// failed is report() of the outcome.
//
// Ranks should write the message of their failure to TORCHELASTIC_ERROR_FILE (error_files.h) and not to
// stderr, where it could come before the cause. A rank that ends because another one failed should say so
// there
// ("culprit"), or by exit code 4 (rendezvous) or 5 (peer lost).
//
// Other threads must have SIGINT, SIGTERM, SIGUSR1 and SIGHUP blocked. However this process ends, no rank
// outlives it. `elsewhere`: null if there are no other nodes, or their ranks end by themselves.
Outcome run_ranks(const Job& job, const Tell& tell = tell_on_stderr, Elsewhere* elsewhere = nullptr);

}  // namespace fsdp::launch
