// From an identity and a store to a World: what init() and run_local() share.
#pragma once

#include <fsdp/world.h>

#include "launch/device.h"
#include "launch/identity.h"
#include "launch/store.h"
#include "launch/world_state.h"

namespace fsdp::detail {

// Meets the others at `store`. Collective.
World enter(const Identity& me, StorePtr store, const InitOptions& options);

}  // namespace fsdp::detail
