// A limit for answers of the store.
#pragma once

#include "base/clock.h"

namespace fsdp::detail {

// Note [Silent stores]
// LibTorch's client of a TCPStore waits for an answer without limit. If rank 0, which serves the store, is
// stopped at that moment, the request never returns, and the thread that made it can never be joined: a
// background save, for example. So the clients' sockets get a receive timeout; the request throws then.

// For the clients of this process that are connected to `port`, and for later clones of them.
void limit_silence_of_store(int port, Milliseconds limit);
// Call it when a client was cloned: a clone has a connection of its own.
void limit_silence_of_clones();

}  // namespace fsdp::detail
