// Chooses the device that a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace fsdp::detail {

// `asked`, else FSDP_DEVICE (cpu, cuda, cuda:1), else cuda if one is visible, else cpu. Without an index:
// local_rank modulo the number of visible devices of that kind.
c10::Device choose_device(std::optional<c10::Device> asked, int local_rank);

}  // namespace fsdp::detail
