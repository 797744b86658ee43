// Plan: one cycle of a model as instructions to gather, release and reduce, with their order and offsets.
// Pure data: no tensors, no streams, no ranks.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
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
  bool inputs_only = false;  // in a backward that asks for no parameter's gradient

  auto operator<=>(const Access&) const = default;
};

struct UnitNeed {
  int64_t slot_bytes = 0;
  bool stays_gathered = false;  // stays gathered from forward to backward (reshard_after_forward = false)
  int64_t buffer_bytes = 0;     // bytes of its buffer in the gradient arena; 0: it has other memory
  bool stays_after_backward = false;  // stays gathered after the cycle too
};

// Backward prefetching. See Note [From trace to plan].
enum class Prefetch : uint8_t {
  pre,   // gathered while earlier units compute
  post,  // gathered when used, before the previous unit's gradients are reduced
  none,  // gathered when used, after that reduction: nothing overlaps
};

// Per unit, the units to gather when it is used, in this order; not set: as the policy says.
using PrefetchLists = std::vector<std::optional<std::vector<UnitId>>>;

struct PlanOptions {
  int forward_ahead = 1;   // number of runs ahead that a unit is gathered in forward
  int backward_ahead = 1;  // the same in backward, for the policy `pre`
  int max_slots = 2;       // limit_all_gathers: units gathered at once, kept and listed ones not counted;
                           // 0: no limit
  Prefetch backward = Prefetch::pre;
  PrefetchLists forward_lists = {};  // empty: no unit has one
  PrefetchLists backward_lists = {};

  // The list of a run; null: it has none.
  const std::vector<UnitId>* list(const Access& run) const;
};

enum class Action : uint8_t {
  // Parameters of a unit:
  release,  // the slot is free once the last operator that used it is done
  gather,   // start to fill the slot
  use,      // wait for the gather: operators may read the slot from here on
  // Gradients of a unit:
  open,           // from here on they arrive in the buffer; the first writer claims it
  reduce,         // start to sum the buffers of the row's ranks
  reduce_across,  // the row's sum is there, the buffer is free: start to sum over the rows of the mesh
  settle,         // the sum is in the gradient shard, the buffer is free
  // All units, at the end of a backward:
  agree,  // ranks tell each other which parameters they used
};
// True if an action is about gradients.
inline bool of_gradients(Action action) { return action >= Action::open; }

struct Instruction {
  Action action = Action::use;
  UnitId unit = 0;
  int64_t offset = -1;          // of the slot or the buffer, in bytes into its arena; -1: memory of its own
  std::vector<bool> used = {};  // reduce: which of the unit's parameters some rank used

  bool operator==(const Instruction&) const = default;
};

// A schedule point, where instructions are carried out: the first operator of a run starts (before its
// kernel) or a backward ends. A run is accesses to one unit, in one phase, with none to another unit between.
struct Moment {
  std::optional<Access> run = std::nullopt;  // none: the end of a backward
  std::vector<Instruction> steps = {};
};

struct Plan {
  std::vector<Moment> moments;
  std::vector<Instruction> after;  // carried out when the cycle is over
  int64_t arena_bytes = 0;         // of slots
  int64_t buffer_bytes = 0;        // of gradient buffers
};

// Note [From trace to plan]
// A recorded cycle is a sequence of schedule points. Its gradient actions are repeated as they were, because
// ranks agreed on them; gathers and releases are planned anew. During run p a unit is alive if
//   - one of the runs p .. p + ahead uses it, where `ahead` is that of p's phase and at most max_slots - 1,
//     or
//   - it has stays_gathered, and p lies between its first use in forward and its last in backward, or
//   - it was named in the prefetch list of a run at or before p, and not used since: a listed unit's
//     lifetime starts at the run with the list and ends with the unit's next use, in whatever phase. A listed
//     unit that the cycle does not use again is skipped.
// A run with a list looks ahead to no other run, and units alive because of a list take none of max_slots. A
// run looks no further than the next run does, so that a gathered unit stays until it is used: this matters
// only if runs look ahead by different numbers. A lifetime is a longest sequence of runs in which a unit is
// alive. Before run p come, in this order,
//   1. gradient actions: sums that arrive, reductions that start, buffers that open,
//   2. the release of the lifetime that ended with run p - 1,
//   3. the gather of p's own unit, if its lifetime begins here,
//   4. the use of p's unit, which waits for its gather,
//   5. the gathers of other lifetimes that begin here, in the order of the list, or in which they will be
//      used.
// A unit that stays gathered after the cycle has one lifetime, the whole cycle, at an offset that is the same
// in every plan, and is not released: it may be gathered already when the next cycle begins. With the policy
// `post` a run of backward looks ahead to none, and 2 and 3 come before 1. With `none` it looks ahead to
// none, and a reduction settles where it starts, so that the gather of 3 follows the sum. So run p + 1's unit
// is being gathered while run p computes; the last unit of forward, which backward uses first, is gathered
// once; and a root used first and last is not held in between. The time to gather depends on the order of
// accesses alone, never on the clock: all ranks with the same trace issue the same collectives. Offsets come
// from packing lifetimes, so the same trace gives the same addresses in every step. A slot lives from its
// gather to its release, a buffer from its open until its sum has left it. `like`: a plan that begins with
// the same schedule points, or null. Units that are gathered where the two part get the same offsets in both,
// so that the executor can change from one to the other there.
Plan make_plan(const std::vector<Moment>& recorded, const std::vector<UnitNeed>& units,
               const PlanOptions& options, const Plan* like = nullptr);

// A unit and the offset of its memory.
using Place = std::pair<UnitId, int64_t>;
// The units that are gathered, or being gathered, before schedule point `at`, in the order of their gathers.
std::vector<Place> residents(const Plan& plan, size_t at);
// The units whose gradient buffers are open at that point, and not reduced.
std::vector<Place> open_buffers(const Plan& plan, size_t at);
// Number of schedule points that two cycles have in common from the beginning, whatever is done there.
size_t common_moments(const std::vector<Moment>& one, const std::vector<Moment>& other);

// Follows the instructions in a model of the arenas, which shares no logic with the making of plans. Returns
// "" or the first error, as text.
std::string check_plan(const Plan& plan, const std::vector<UnitNeed>& units, const PlanOptions& options);

}  // namespace fsdp::detail
