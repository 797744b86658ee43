// Collectives through memory that all ranks of the group can see. `local` and `shm` get that memory from
// different sources.
#pragma once

#include <memory>

#include "base/liveness.h"
#include "comm/backend.h"
#include "comm/shared/segment.h"

namespace fsdp::detail {

// Meets the other ranks through `info.store`. Collective; throws RendezvousError if one does not come.
std::unique_ptr<CommBackend> make_shared_backend(const char* name, const GroupInfo& info,
                                                 std::unique_ptr<SegmentSource> source,
                                                 std::unique_ptr<Liveness> liveness);

}  // namespace fsdp::detail
