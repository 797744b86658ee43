// How the ranks of a job ended, which of them is the cause, and what the user is told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::launch {

// The exit code of a rank that was asked to end, saved, and is to be started again.
inline constexpr int kRequeue = 75;

inline constexpr const char* kUsedWrongly = "Not started again: the next start would be refused, too.";

// Why a rank ended, from near the cause of a failure to far from it.
enum class EndKind {
  own,      // by itself: a clean end, or an error of its own
  stopped,  // it was stopped (SIGSTOP, a debugger) when another rank had failed, and was killed
  peer,     // it reports that another rank failed
  asked,    // by the supervisor's SIGTERM, or its own answer to it
  killed,   // by the supervisor's SIGKILL
};

struct RankEnd {
  int rank = 0;       // -1: no rank, but a launcher or a node: `message` says all
  int exit_code = 0;  // 128 + signal if one ended it
  int signal = 0;     // 0: it exited
  EndKind kind = EndKind::own;
  int culprit = -1;                          // the rank that this one blames; -1: none
  int64_t step = -1;                         // the last that it began; -1: it does not say
  std::string message = {};                  // from its error file
  std::vector<std::string> last_lines = {};  // of its output, if it failed
  std::string log = {};                      // path; empty: its output was shown
  std::string host = {};                     // empty: that of the Outcome

  bool failed() const { return exit_code != 0; }
};

struct Outcome {
  std::vector<RankEnd> ends;  // in the order in which the ranks ended
  int world_size = 1;
  std::string host;
  int interrupted_by = 0;        // the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP to the supervisor
  bool abandoned = false;        // it got a second one, and killed the ranks
  std::string not_again = {};    // why the ranks are not started again, where restarts are left
  std::string late_errors = {};  // stderr of the ranks from the first failure on, where it was held back

  // The rank whose failure made the others fail: the first that failed by itself; if there is none, the first
  // stopped one; else the first that reports another rank's failure, or the rank that it blames if that one
  // reports a failure too.
  // A rank that saved and left (75) only if no other failed. Null: no rank failed.
  const RankEnd* cause() const;
  // The highest step that a rank began; -1: none says.
  int64_t step() const;
  // The ranks saved after a signal to the supervisor or to one of them, and ask to be started again. That is
  // no failure: the exit code is 75, but 0 after SIGINT to the supervisor, by which a person ends the run.
  bool asks_for_requeue() const;
  // 0 if all ranks ended with 0, also after a signal to the supervisor. Else the cause's own code, 128 + n
  // for signal n. If the signal to the supervisor made the ranks fail: 128 + that signal.
  int exit_code() const;
};

// "ended with exit code 3", "crashed with SIGSEGV (signal 11): ...", without the rank.
std::string describe(const RankEnd& end);

// The cause in a line: "rank 1 of 4 on node7 ended with exit code 3".
std::string headline(const Outcome& outcome);

// The cause with the first line of its message. Some rank failed.
std::string in_short(const Outcome& outcome);

// Lines for stderr: the cause first, with host, message or last lines of output; then the other ranks that
// failed, and `late_errors`. Empty if none failed.
std::string report(const Outcome& outcome);

// "rank 0", "ranks 0, 1, 4-7".
std::string name_ranks(std::vector<int> ranks);

}  // namespace fsdp::launch
