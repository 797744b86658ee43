#include "plan/on_demand.h"

#include <algorithm>

#include "plan/arena.h"

namespace fsdp::detail {

namespace {

// A unit's gradients may be in one sum at a time, so this finishes the one in flight.
void settle(std::vector<Instruction>& steps, const std::vector<InFlight>& in_flight, UnitId unit) {
  for (const InFlight& one : in_flight) {
    if (one.unit != unit) continue;
    if (one.across) steps.push_back({.action = Action::reduce_across, .unit = unit});
    steps.push_back({.action = Action::settle, .unit = unit});
  }
}

// The lowest offset for `bytes` between the slots.
std::optional<int64_t> find_room(const Slots& slots, int64_t bytes) {
  std::vector<Range> taken;
  for (const Resident& one : slots.residents)
    if (one.offset >= 0) taken.push_back({one.offset, one.bytes});
  return find_hole(std::move(taken), bytes, slots.arena_bytes);
}

bool all_taken(const Slots& slots) {
  const auto counted = std::count_if(slots.residents.begin(), slots.residents.end(),
                                     [](const Resident& one) { return one.counts; });
  return slots.max_slots > 0 && counted >= slots.max_slots;
}

}  // namespace

std::vector<Instruction> make_readable(UnitId unit, int64_t bytes, Slots slots) {
  std::vector<Instruction> steps;
  std::optional<int64_t> room;
  while (true) {
    const bool full = all_taken(slots);
    if (!full) room = find_room(slots, bytes);
    if (!full && room) break;
    const auto oldest = std::find_if(slots.residents.begin(), slots.residents.end(),
                                     [](const Resident& one) { return one.idle; });
    if (oldest == slots.residents.end()) {
      room = find_room(slots, bytes);
      break;
    }
    steps.push_back({.action = Action::release, .unit = oldest->unit, .offset = oldest->offset});
    slots.residents.erase(oldest);
  }
  steps.push_back({.action = Action::gather, .unit = unit, .offset = room.value_or(-1)});
  steps.push_back({.action = Action::use, .unit = unit, .offset = room.value_or(-1)});
  return steps;
}

std::vector<Instruction> go_on(const std::vector<InFlight>& in_flight) {
  std::vector<Instruction> steps;
  for (const InFlight& one : in_flight)
    steps.push_back({.action = one.across ? Action::reduce_across : Action::settle, .unit = one.unit});
  return steps;
}

std::vector<Instruction> end_backward(const std::vector<InFlight>& in_flight) {
  std::vector<Instruction> steps{{.action = Action::agree}};
  for (const InFlight& one : in_flight)
    if (one.across) steps.push_back({.action = Action::reduce_across, .unit = one.unit});
  for (const InFlight& one : in_flight) steps.push_back({.action = Action::settle, .unit = one.unit});
  return steps;
}

std::vector<Instruction> reduce_complete(const std::vector<GradientCounts>& units, int64_t ranks,
                                         const std::vector<InFlight>& in_flight) {
  std::vector<Instruction> steps;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto unit = static_cast<UnitId>(i);
    if (units[i].ranks_open > 0) steps.push_back({.action = Action::open, .unit = unit});
    if (units[i].ranks_complete < ranks) continue;
    settle(steps, in_flight, unit);
    steps.push_back({.action = Action::reduce, .unit = unit, .used = units[i].trained});
  }
  return steps;
}

std::vector<Instruction> reduce_rest(const std::vector<std::vector<bool>>& used,
                                     const std::vector<InFlight>& in_flight) {
  std::vector<Instruction> steps;
  for (size_t i = 0; i < used.size(); ++i) {
    const auto unit = static_cast<UnitId>(i);
    if (std::find(used[i].begin(), used[i].end(), true) == used[i].end()) continue;
    steps.push_back({.action = Action::open, .unit = unit});
    settle(steps, in_flight, unit);
    steps.push_back({.action = Action::reduce, .unit = unit, .used = used[i]});
  }
  return steps;
}

}  // namespace fsdp::detail
