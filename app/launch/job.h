// The ranks to start on this machine: their program, their place among the nodes, and where their output
// goes.
#pragma once

#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "app/launch/processors.h"

namespace fsdp::launch {

using Environment = std::map<std::string, std::string>;

// The ranks cannot be started, or it is unclear what this process is. what() says what was found, what was
// expected and what to do.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How long the supervisor waits before its next step.
struct Patience {
  using Time = std::chrono::milliseconds;
  Time alone{3000};    // after the first failure the other ranks may end by themselves; then SIGTERM
  Time saved{30000};   // the same after a rank that saved and left (exit code 75)
  Time stopped{1000};  // after the first failure a stopped rank (SIGSTOP) is killed
  Time term{5000};     // after that SIGTERM the ranks may end; then SIGKILL
  Time repeat{
      250};  // a second signal within this time repeats the first: a terminal and a parent may both send
  Time first_word{2000};  // a wait longer than this is told to the user,
  Time next_word{5000};   // and again after each of these
};

// Of a rank, as in torchrun's --tee.
inline constexpr unsigned kStdout = 1;
inline constexpr unsigned kStderr = 2;
inline constexpr unsigned kBothStreams = kStdout | kStderr;

struct Job {
  std::vector<std::string> argv;  // the program, found in PATH unless it has a '/', and its arguments
  int ranks = 1;                  // to start here
  int nodes = 1;                  // each starts as many ranks
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;           // 0: a free one. Only for one node, whose master_addr is loopback
  Environment environment = {};  // added to this process's own
  std::string log_folder = {};   // created. Rank N writes to rank-N.log there. Empty: all ranks are shown
  std::vector<int> shown = {0};  // ranks whose stdout and stderr are this process's own
  // The ranks' output comes through this process: each line of a shown rank gets "[rank N] " in front. With
  // log_folder, shown ranks have a log too. After the first failure stderr is held back for the report.
  bool relayed = false;
  std::map<int, unsigned> streams = {};  // if relayed: the streams to show, of shown ranks; missing: both
  std::vector<int> inherited_fds = {};   // stay open in the ranks, with the same numbers
  std::string run_id = "none";           // TORCHELASTIC_RUN_ID
  int restart_count = 0;
  int max_restarts = 0;
  int final_code = -1;  // the exit code after which ranks are not started again; -1: none
  NumaBinding numa_binding = NumaBinding::automatic;
  Patience patience = {};

  int world_size() const { return nodes * ranks; }
  int first_rank() const { return node_rank * ranks; }
};

}  // namespace fsdp::launch
