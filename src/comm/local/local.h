// Ranks that are threads of one process, for tests.
#pragma once

#include "comm/backend.h"

namespace fsdp::detail {

bool local_available();
std::unique_ptr<CommBackend> make_local(const GroupInfo& info);

}  // namespace fsdp::detail
