// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace fsdp::detail {

// `asked`, else FSDP_DEVICE (cpu, cuda, cuda:1), else cuda:(local_rank modulo visible devices), else cpu.
c10::Device choose_device(std::optional<c10::Device> asked, int local_rank);

}  // namespace fsdp::detail
