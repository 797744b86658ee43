// What to do in a cycle that has no plan: from what memory holds and what ranks told each other to the
// instructions of this moment. Pure: the same answers give the same instructions on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsdp::detail {

// A unit that is gathered, or on its way.
struct Resident {
  UnitId unit = 0;
  int64_t offset = -1;  // of its slot; -1: outside of the arena
  int64_t bytes = 0;
  bool counts = true;  // among those that the number of slots limits
  bool idle = true;    // no operator reads it, and it need not stay for backward
};

struct Slots {
  std::vector<Resident> residents;  // least recently used first
  int64_t arena_bytes = 0;
  int max_slots = 0;  // 0: no limit
};

// An operator needs `unit`, which is not gathered: what was used longest ago is released until there is room.
// A gather at -1: the arena cannot hold it.
std::vector<Instruction> make_readable(UnitId unit, int64_t bytes, Slots slots);

// A reduction that was started and has not settled.
struct InFlight {
  UnitId unit = 0;
  bool across = false;  // it has still to be summed over the rows of the mesh
};

// The model goes on to another unit: what was started before goes on.
std::vector<Instruction> go_on(const std::vector<InFlight>& in_flight);
// A backward ends: ranks agree on what they used, and everything arrives.
std::vector<Instruction> end_backward(const std::vector<InFlight>& in_flight);

// What ranks have of a unit's gradients, counted over all of them.
struct GradientCounts {
  int64_t ranks_open = 0;          // that have some which are not reduced
  int64_t ranks_complete = 0;      // that have all of them
  std::vector<bool> trained = {};  // the unit's parameters
};
// Units that are complete on all `ranks` are reduced; those that are open somewhere open everywhere.
std::vector<Instruction> reduce_complete(const std::vector<GradientCounts>& units, int64_t ranks,
                                         const std::vector<InFlight>& in_flight);
// `used`: per unit, the parameters that some rank has a gradient for. Whatever there is, is reduced.
std::vector<Instruction> reduce_rest(const std::vector<std::vector<bool>>& used,
                                     const std::vector<InFlight>& in_flight);

}  // namespace fsdp::detail
