// Which unit to gather and release in one step, when, and where. Pure data: no tensors, no streams, no ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::detail {

using UnitId = int32_t;

enum class Phase : uint8_t { forward, backward };

// One use of a unit by an operator, in program order, as the observer saw it.
struct Access {
  UnitId unit = 0;
  Phase phase = Phase::forward;

  bool operator==(const Access&) const = default;
};

struct UnitNeed {
  int64_t slot_bytes = 0;
  bool keep = false;  // stays gathered from forward to backward (reshard_after_forward = false)
};

struct PlanOptions {
  int forward_ahead = 1;   // how many runs ahead a unit is gathered in forward
  int backward_ahead = 1;  // and in backward
  int max_slots = 2;       // limit_all_gathers: units gathered at once, kept ones not counted; 0: no limit
};

enum class Action : uint8_t {
  release,  // the slot is free once the last operator that used it is done
  gather,   // start to fill the slot
  use,      // wait for the gather: operators may read the slot from here on
};

struct Instruction {
  Action action = Action::use;
  UnitId unit = 0;
  int64_t offset = 0;  // of the slot, in bytes into the arena

  bool operator==(const Instruction&) const = default;
};

// Accesses to one unit, in one phase, with none to another unit between them.
struct PlannedRun {
  Access access;
  std::vector<Instruction> before;  // executed when its first operator starts, before the kernel runs
};

struct Plan {
  std::vector<PlannedRun> runs;
  std::vector<Instruction> after;  // executed when the step's last backward has ended
  int64_t arena_bytes = 0;
};

// Note [From trace to plan]
// A trace is one step's accesses; collapsed, it is a sequence of runs. During run p a unit is alive if
//   - one of the runs p .. p + ahead uses it, where `ahead` is that of p's phase and at most max_slots - 1,
//   or
//   - it has `keep`, and p lies between its first use in forward and its last in backward.
// A run looks no further than the run after it does, so that what is gathered stays until it was used: this
// matters only where the phases look ahead by different numbers. A lifetime is a longest sequence of runs
// in which a unit is alive. Before run p come, in this order,
//   1. the release of the lifetime that ended with run p - 1,
//   2. the gather of p's own unit, if its lifetime begins here,
//   3. the use of p's unit, which waits for its gather,
//   4. the gathers of other lifetimes that begin here, in the order in which they will be used.
// So run p + 1's unit is on its way while run p computes, the last unit of forward, which backward uses
// first, is gathered once, and a root used first and last is not held in between. When to gather depends on
// the order of accesses alone, never on time: all ranks with the same trace issue the same collectives.
// Offsets come from packing the lifetimes, so the same trace gives the same addresses in every step.
// `like`: a plan that begins with the same runs, or null; units that are gathered where the two part lie at
// the same offsets in both, so that one can be left for the other there.
Plan make_plan(const std::vector<Access>& trace, const std::vector<UnitNeed>& units,
               const PlanOptions& options, const Plan* like = nullptr);

// The units that are gathered, or on their way, while run `run` of a plan computes, with their offsets, in
// the order of their gathers.
std::vector<std::pair<UnitId, int64_t>> residents(const Plan& plan, size_t run);
// How many runs two plans have in common from the beginning.
size_t common_runs(const Plan& plan, const std::vector<Access>& runs);

// One access per run: neighbours that are equal become one.
std::vector<Access> collapse(const std::vector<Access>& trace);

// Follows the instructions in a model of the arena that knows nothing of how plans are made. Empty, or the
// first thing that is wrong, in words.
std::string check_plan(const Plan& plan, const std::vector<UnitNeed>& units, const PlanOptions& options);

}  // namespace fsdp::detail
