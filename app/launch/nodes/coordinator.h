// The thread, in one node's launcher, that keeps the launchers of all nodes together.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <thread>

#include "app/launch/nodes/assembly.h"
#include "app/launch/nodes/wire.h"
#include "app/launch/port.h"

namespace fsdp::launch {

// Serves an endpoint and carries out what an Assembly decides. A connection that does not begin with the
// greeting of a node of this run is closed, and disturbs nothing. The messages, each an object with "is":
//   node -> coordinator  hello (run, host, ranks, place), failing, ended (outcome)
//   coordinator -> node  start (place, nodes, restarts, port, run, text), wait (text), fail (text), leave
//   (text),
//                        over (outcome), refuse (text)
class Coordinator {
 public:
  // `run` is the run's name, which nodes must know. Starts the thread, with all signals blocked.
  // Throws LaunchError.
  Coordinator(Fd listener, std::string run, AssemblyRules rules);
  // Ends the thread, once every node has been told how the run ended or is gone.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // The connection of the node that this runs on: node 0 of every round without places, where rank 0 is.
  Wire take_own() { return std::move(own_); }

 private:
  using Clock = Assembly::Clock;
  struct Peer {
    Wire wire;
    bool greeted = false;
    bool done = false;  // told that the run is over, or refused
    bool refused = false;
    Clock::time_point since = Clock::now();
  };

  // No node of this run, or not yet: it is dropped soon, and there are not many.
  static bool is_stranger(const Peer& peer) { return !peer.greeted || peer.refused; }

  void serve();
  void accept_new();
  void listen_to(int number, Peer& peer);
  void greet(int number, Peer& peer, const nlohmann::json& message);
  void drop_the_gone();
  void carry_out(const Assembly::Orders& orders);
  bool all_told() const;

  Fd listener_;
  std::string run_;        // as nodes must know it
  std::string ranks_run_;  // TORCHELASTIC_RUN_ID of the ranks
  Assembly assembly_;
  Wire own_;
  std::map<int, Peer> peers_;
  int next_ = 1;
  std::optional<ReservedPort> port_;  // of the round
  Fd wake_read_, wake_write_;
  std::thread thread_;
};

}  // namespace fsdp::launch
