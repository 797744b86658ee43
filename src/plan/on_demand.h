// Instructions for a cycle that has no plan: from what memory holds and ranks told each other to the
// instructions of this schedule point. Pure: the same answers give the same instructions on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// A unit that is gathered, or being gathered.
struct Resident {
  UnitId unit = 0;
  int64_t offset = -1;  // of its slot; -1: outside of the arena
  int64_t bytes = 0;
  bool counts = true;  // counts against the number of slots
  bool idle = true;    // no operator reads it, and it need not stay for backward
};

struct Slots {
  std::vector<Resident> residents;  // least recently used first
  int64_t arena_bytes = 0;
  int max_slots = 0;  // 0: no limit
};

// An operator needs `unit`, which is not gathered: releases the least recently used until there is room. A
// gather at -1: the arena has no room for it.
std::vector<Instruction> make_readable(UnitId unit, int64_t bytes, Slots slots);

// A reduction that was started and has not settled.
struct InFlight {
  UnitId unit = 0;
  bool across = false;  // its sum over the rows of the mesh is still to start
};

// The model goes on to another unit: advances the reductions in flight.
std::vector<Instruction> go_on(const std::vector<InFlight>& in_flight);
// A backward ends: ranks agree on the parameters they used, and all reductions finish.
std::vector<Instruction> end_backward(const std::vector<InFlight>& in_flight);

// Gradients of a unit, counted over all ranks.
struct GradientCounts {
  int64_t ranks_open = 0;          // ranks with gradients that are not reduced
  int64_t ranks_complete = 0;      // ranks with all gradients
  std::vector<bool> trained = {};  // which of the unit's parameters are trained
};
// Reduces units that are complete on all `ranks`; units that are open on any rank open on every rank.
std::vector<Instruction> reduce_complete(const std::vector<GradientCounts>& units, int64_t ranks,
                                         const std::vector<InFlight>& in_flight);
// Reduces all gradients that exist. `used`: per unit, the parameters for which any rank has a gradient.
std::vector<Instruction> reduce_rest(const std::vector<std::vector<bool>>& used,
                                     const std::vector<InFlight>& in_flight);

}  // namespace fsdp::detail
