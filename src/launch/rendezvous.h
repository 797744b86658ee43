// The rendezvous: each rank presents itself, waits for the others and checks that all fit together.
#pragma once

#include <vector>

#include "launch/identity.h"
#include "launch/store.h"

namespace fsdp::detail {

// Returns all ranks in order. Throws RendezvousError, naming the ranks that are missing, there twice, or of
// another build or size.
std::vector<Peer> meet(const Identity& me, const StorePtr& store, Milliseconds timeout);

}  // namespace fsdp::detail
