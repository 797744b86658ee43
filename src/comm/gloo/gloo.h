// CPU ranks of several hosts, over the gloo that LibTorch has built in.
#pragma once

#include "comm/backend.h"

namespace fsdp::detail {

bool gloo_available();
std::string gloo_unavailable_reason();
std::unique_ptr<CommBackend> make_gloo(const GroupInfo& info);

}  // namespace fsdp::detail
