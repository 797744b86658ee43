// CUDA ranks through NCCL.
#pragma once

#include "comm/backend.h"

namespace fsdp::detail {

bool nccl_available();
std::string nccl_unavailable_reason();  // the reason, with advice
std::unique_ptr<CommBackend> make_nccl(const GroupInfo& info);

}  // namespace fsdp::detail
