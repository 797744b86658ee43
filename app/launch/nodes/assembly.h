// Decides when nodes start their ranks, and what follows when some end. Knows no socket and no process.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/outcome.h"
#include "app/launch/restarts.h"

namespace fsdp::launch {

// Note [Rounds]
// The nodes of a run start their ranks together, in rounds. A round begins when enough nodes are there, and
// ends when all of its ranks have ended. If a rank fails or a node is lost, the others are told to end their
// ranks; then the next round begins. In a run of a fixed size every node is needed again. In an elastic one
// (--nnodes MIN:MAX) the round waits some seconds for nodes to come back, and begins with the largest number
// of nodes on which the program runs. Nodes that are too many wait. If a node comes while a smaller round
// runs, and the round would be larger with it, the ranks are asked to save and leave, and the next round has
// it; --max-restarts does not count that. TORCHELASTIC_RESTART_COUNT is one higher in each round, whatever
// the reason, so that ranks go on with what was saved.

struct NodeInfo {
  std::string host;
  int ranks = 1;
  int place = -1;  // the node rank that it wants; -1: any
};

struct AssemblyRules {
  using Time = std::chrono::milliseconds;
  int least = 1, most = 1;  // nodes
  int max_restarts = 0;
  int final_code = -1;                         // Job::final_code
  std::function<bool(int ranks)> usable = {};  // does the program run on that many? Empty: on any number
  Time first_call{10000};                      // elastic: the wait for more nodes before the first round,
  Time next_call{3000};                        // and before each other
  Time join{600000};                           // too few nodes for that long end the run
};

// A message of the coordinator to one node.
struct Order {
  enum class Kind {
    start,   // its ranks, as node `place` of `nodes`
    wait,    // it is too many
    fail,    // end the ranks: one failed elsewhere
    leave,   // ask the ranks to save and leave
    over,    // the run has ended as Assembly::outcome() says
    refuse,  // the node does not fit: `text`
  };
  int node = 0;  // its number in joined()
  Kind kind = Kind::wait;
  int place = 0, nodes = 0, restarts = 0;
  std::string text = {};
};

class Assembly {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point;
  using Orders = std::vector<Order>;

  Assembly(AssemblyRules rules, Now now) : rules_(std::move(rules)), changed_at_(now) {}

  // A node is there. Numbers are never used again; node 0 is the one that this runs on.
  Orders joined(int node, const NodeInfo& info, Now now);
  // Its connection is gone.
  Orders lost(int node, Now now);
  // One of its ranks failed; the others may still run.
  Orders failing(int node);
  // All of its ranks have ended.
  Orders ended(int node, const Outcome& outcome, Now now);
  Orders tick(Now now);
  // When tick() has something to do.
  std::optional<Now> next_tick() const;

  bool is_over() const { return phase_ == Phase::over; }
  // The ends of all ranks of the last round, those of the node that failed first in front.
  const Outcome& outcome() const { return outcome_; }

 private:
  enum class Phase { gathering, running, ending, over };
  struct Node {
    NodeInfo info;
    bool in_round = false;
    bool running = false;
    int place = 0;
  };

  bool is_elastic() const { return rules_.least != rules_.most; }
  // The most nodes of those there on which a round can run; 0: none.
  int largest_round() const;
  std::string why_refused(const NodeInfo& info) const;
  Orders try_start(Now now);
  Orders start(int nodes);
  Orders end_round(Order::Kind kind, const std::string& text);
  Orders node_ended(Now now);
  Orders settle(Now now);
  Orders gather(Now now, const std::string& why);
  Orders finish();
  Orders to_all(Order order) const;

  AssemblyRules rules_;
  std::map<int, Node> nodes_;
  Phase phase_ = Phase::gathering;
  Now changed_at_;  // a node came or went, while gathering
  int rounds_ = 0, restarts_ = 0, round_nodes_ = 0;
  bool growing_ = false;          // the round is ended for a larger one
  std::string came_;              // the host that made it larger
  bool told_of_failure_ = false;  // the nodes of the round
  int first_failed_ = -1;         // the node that said so first
  int interrupted_by_ = 0;        // a signal to the launcher of a node
  bool has_to_end_ = false;       // because of that signal
  std::string why_;               // of the next round
  Outcome outcome_;
  CrashLoop loop_;
};

}  // namespace fsdp::launch
