// Finds the NUMA node on which host memory for a device belongs.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "base/numa.h"

namespace fsdp::detail {

// The node that `device` is attached to; none if it makes no difference.
std::optional<NumaNode> node_near(c10::Device device);

}  // namespace fsdp::detail
