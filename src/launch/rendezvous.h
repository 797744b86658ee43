// How ranks meet: each says who it is, waits for the others and checks that they fit together.
#pragma once

#include <vector>

#include "launch/identity.h"
#include "launch/store.h"

namespace fsdp::detail {

// All ranks in order. Throws RendezvousError naming ranks that are missing, there twice, or of another build
// or size.
std::vector<Peer> meet(const Identity& me, const StorePtr& store, Milliseconds timeout);

}  // namespace fsdp::detail
