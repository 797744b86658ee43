// Any c10d::Backend (gloo, MPI, UCC, a vendor's) as a backend of ours.
#pragma once

#include "comm/backend.h"

namespace fsdp::detail {

bool c10d_available();
std::unique_ptr<CommBackend> make_c10d(const GroupInfo& info);

}  // namespace fsdp::detail
