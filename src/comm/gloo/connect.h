// The connections of a group, one from each rank to each other.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/backend.h"

namespace fsdp::detail {

// LibTorch's gloo, for messages between two ranks. Collective. Throws RendezvousError.
c10::intrusive_ptr<::c10d::Backend> connect_gloo(const GroupInfo& info);

}  // namespace fsdp::detail
