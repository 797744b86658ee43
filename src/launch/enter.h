// The part that init() and run_local() share: from an identity and a store to a World.
#pragma once

#include <fsdp/world.h>

#include "launch/device.h"
#include "launch/identity.h"
#include "launch/store.h"
#include "launch/world_state.h"

namespace fsdp::detail {

// A debug line about this rank and the store it goes to.
void log_identity(const Identity& me);

// Meets the other ranks at `store`. Collective.
World enter(const Identity& me, StorePtr store, const InitOptions& options);

}  // namespace fsdp::detail
