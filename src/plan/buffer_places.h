// Where in the gradient arena each buffer lies: from opens and reductions to offsets. Pure integers.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// Gives every open and its reduction an offset. A reduction whose open is missing gets one, right before it;
// an open whose gradients never came goes. Returns the bytes of the arena.
int64_t place_buffers(std::vector<Moment>& moments, const std::vector<UnitNeed>& units);

}  // namespace fsdp::detail
