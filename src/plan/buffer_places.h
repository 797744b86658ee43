// Offsets of gradient buffers in the gradient arena, from opens and reductions. Pure integers.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// Gives every open and its reduction an offset. A reduction without an open gets one right before it; an open
// whose gradients never arrived is removed. Returns the bytes of the arena.
int64_t place_buffers(std::vector<Moment>& moments, const std::vector<UnitNeed>& units);

}  // namespace fsdp::detail
