// Ranks that are processes of one host and communicate through shared memory.
#pragma once

#include "comm/backend.h"

namespace fsdp::detail {

bool shm_available();
std::unique_ptr<CommBackend> make_shm(const GroupInfo& info);

}  // namespace fsdp::detail
