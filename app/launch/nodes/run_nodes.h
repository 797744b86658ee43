// The ranks of this node, started together with those of other nodes, and again after a failure.
#pragma once

#include <string>

#include "app/launch/nodes/assembly.h"
#include "app/launch/nodes/wire.h"
#include "app/launch/supervisor.h"

namespace fsdp::launch {

struct Meeting {
  Endpoint endpoint;  // where the launchers meet
  int place = -1;     // this node's rank; -1: any
  AssemblyRules rules;
};

// Note [Launchers that meet]
// The launchers of all nodes meet at one endpoint. The one that can listen there keeps them together
// (coordinator.h): that of node 0, or without node ranks the first whose address it is. Its node must live as
// long as the run; any other may be lost and come back. Ranks do not use this connection: they meet at the
// same host, at a port that is new in each round.

// Says through `tell` what it waits for, and why ranks are started again. Returns how the last round ended on
// all nodes, which the launcher of every node reports alike. Throws LaunchError if this node does not fit the
// run.
Outcome run_with_nodes(Job job, const Meeting& meeting, const Tell& tell = tell_on_stderr);

}  // namespace fsdp::launch
