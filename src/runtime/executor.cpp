#include "runtime/executor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>

#include "base/assert.h"
#include "runtime/memory_report.h"
#include "watch/quiet.h"

namespace fsdp::detail {

Executor::Executor(c10::Device device, int max_slots)
    : device_(device), max_slots_(max_slots), readers_(device) {}

int64_t Executor::first_estimate(const std::vector<std::shared_ptr<Unit>>& units, int max_slots) {
  std::vector<int64_t> passing;
  int64_t kept = 0;
  for (const auto& unit : units) {
    if (unit->spec.stays_gathered)
      kept += unit->arena_bytes();
    else
      passing.push_back(unit->arena_bytes());
  }
  std::sort(passing.rbegin(), passing.rend());
  if (max_slots > 0 && passing.size() > static_cast<size_t>(max_slots))
    passing.resize(static_cast<size_t>(max_slots));
  for (const int64_t bytes : passing) kept += bytes;
  return kept;
}

void Executor::reserve(int64_t bytes) {
  if (bytes == arena_bytes()) return;
  FSDP_ASSERT(resident_.empty());
  const Quiet quiet;
  arena_ = at::Tensor();
  if (bytes == 0) return;
  arena_ = allocate(bytes);
}

at::Tensor Executor::allocate(int64_t bytes) const {
  return sharer_ != nullptr ? sharer_->allocate(MemoryUse::gather, bytes, at::kByte) : own_memory(bytes);
}

at::Tensor Executor::own_memory(int64_t bytes) const {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
}

int64_t Executor::overflow_bytes() const {
  int64_t bytes = 0;
  for (const Unit* unit : resident_)
    if (unit->slot.offset < 0) bytes += unit->spec.slot_bytes();
  return bytes;
}

bool Executor::is_free(int64_t offset, int64_t bytes) const {
  return std::none_of(resident_.begin(), resident_.end(), [&](const Unit* unit) {
    return unit->slot.offset >= 0 && unit->slot.offset < offset + bytes &&
           offset < unit->slot.offset + unit->spec.slot_bytes();
  });
}

void Executor::release_overdue() {
  for (Unit* unit : std::exchange(overdue_, {}))
    if (unit->pins == 0) release(*unit);
}

bool Executor::obey(const Instruction& step, Unit& unit) {
  if (unit.in_place()) return true;
  switch (step.action) {
    case Action::release:
      if (unit.pins == 0)
        release(unit);
      else
        overdue_.push_back(&unit);  // an operator that reads several units holds it
      return true;
    case Action::gather:
      if (unit.slot.state != UnitState::sharded) return true;
      if (step.offset >= 0 && !is_free(step.offset, unit.arena_bytes())) return false;
      gather(unit, step.offset);
      return true;
    case Action::use:
      if (unit.slot.state == UnitState::sharded) return false;
      use(unit);
      return true;
    default:
      return true;
  }
}

bool Executor::change_over(const std::vector<Place>& expected,
                           const std::vector<std::shared_ptr<Unit>>& units) {
  const std::vector<Unit*> here = resident_;
  for (Unit* unit : here) {
    const bool stays = std::any_of(expected.begin(), expected.end(), [&](const Place& one) {
      return one.first == unit->id && (unit->slot.offset < 0 || one.second == unit->slot.offset);
    });
    if (stays || unit->slot.is_private || unit->pins > 0) continue;
    release(*unit);
  }
  return std::all_of(expected.begin(), expected.end(), [&](const Place& one) {
    return obey({.action = Action::gather, .unit = one.first, .offset = one.second},
                *units[static_cast<size_t>(one.first)]);
  });
}

std::vector<Instruction> Executor::gather_now(Unit& unit, const std::vector<std::shared_ptr<Unit>>& units) {
  if (unit.in_place()) return {};
  std::vector<Instruction> steps;
  if (unit.slot.state == UnitState::sharded && unit.slot.is_private) {
    gather(unit, -1);
  } else if (unit.slot.state == UnitState::sharded) {
    steps = make_readable(unit.id, unit.spec.slot_bytes(), slots());
    for (const Instruction& step : steps) obey(step, *units[static_cast<size_t>(step.unit)]);
    if (steps.back().offset < 0) warn_of_overflow(unit.spec.slot_bytes());
  }
  use(unit);
  const auto place = std::find(resident_.begin(), resident_.end(), &unit);
  std::rotate(place, place + 1, resident_.end());
  read(unit);
  return steps;
}

// Outside the arena, since every offset there may be planned for another unit.
void Executor::gather_ahead(Unit& unit) {
  if (!unit.in_place() && unit.slot.state == UnitState::sharded) gather(unit, -1);
}

Slots Executor::slots() const {
  Slots slots{.residents = {}, .arena_bytes = arena_bytes(), .max_slots = max_slots_};
  for (const Unit* unit : resident_) {
    const bool passing = !unit->spec.stays_gathered && !unit->slot.is_private;
    slots.residents.push_back({.unit = unit->id,
                               .offset = unit->slot.offset,
                               .bytes = unit->spec.slot_bytes(),
                               .counts = passing,
                               .idle = passing && unit->pins == 0});
  }
  return slots;
}

void Executor::warn_of_overflow(int64_t bytes) {
  if (!std::exchange(warned_, true))
    TORCH_WARN("fsdp: an operator needs more units at once than there are slots; ", bytes,
               " bytes are taken outside the arena. Raise limit_all_gathers, or put these parameters into "
               "one unit.");
}

// Keeps a part of the slot's values if a backward will follow.
void Executor::save_for_backward(Unit& unit) {
  if (!expects_backward_ || !unit.read_backward || unit.slot.state != UnitState::gathered ||
      !unit.saves_for_backward())
    return;
  unit.slot.readers.wait_for_others();
  for (const auto& region : unit.regions) region->gather_path->save();
  readers_.join();
}

void Executor::drop_saved(Unit& unit) {
  for (const auto& region : unit.regions) region->gather_path->drop_saved();
}

void Executor::gather(Unit& unit, int64_t offset) {
  const Quiet quiet;
  const bool kept = phase_ == Phase::backward && unit.saved_bytes() > 0;
  const GatherFrom from = kept ? GatherFrom::reshard_group : GatherFrom::row;
  const bool own = unit.slot.is_private || unit.needs_own_slot(from);
  const int64_t place = own ? -1 : offset;
  at::Tensor memory = arena_;
  const bool shared = !own && sharer_ != nullptr && sharer_->shares_memory();
  if (place < 0 && unit.spec.slot_bytes() > 0)
    memory = with_memory_report(*unit.engine, "a slot outside the arena", unit.spec.slot_bytes(), [&] {
      return shared ? allocate(unit.spec.slot_bytes()) : own_memory(unit.spec.slot_bytes());
    });
  readers_.wait_for_others();
  carve_slots(unit, memory, std::max(place, int64_t{0}));
  unit.slot.offset = place;
  unit.slot.state = UnitState::gathering;
  unit.peers_may_read = unit.peers_may_read || unit.peers_read_shard();
  resident_.push_back(&unit);
  const std::string label = remark_.empty() ? unit.name() : unit.name() + ": " + remark_;
  for (const auto& region : unit.regions)
    if (!region->spec.in_place()) region->slot = region->gather_path->start(region->slot, from, label);
  remark_.clear();
  ++unit.slot.gathers;
}

void Executor::use(Unit& unit) {
  if (unit.slot.state != UnitState::gathering) return;
  const Quiet quiet;
  for (const auto& region : unit.regions) region->gather_path->finish();
  if (unit.stale()) unit.note_written();
  unit.bind();
  unit.slot.state = UnitState::gathered;
  unit.slot.readers.join();
  readers_.join();
}

void Executor::read(Unit& unit) {
  if (unit.slot.state != UnitState::gathered || !unit.slot.readers.join()) return;
  unit.slot.readers.wait_for_others();  // a stream of theirs has waited for the gather
  readers_.join();
}

void Executor::release(Unit& unit) {
  if (unit.slot.state == UnitState::sharded || unit.in_place()) return;
  FSDP_ASSERT(unit.pins == 0);
  const Quiet quiet;
  if (unit.last_read == Phase::forward)
    save_for_backward(unit);
  else
    drop_saved(unit);
  if (unit.slot.offset < 0) unit.slot.readers.wait_for_others();  // its memory goes back to the allocator
  unit.slot.readers.clear();
  for (const auto& region : unit.regions) {
    if (!region->slot.defined()) continue;
    region->gather_path->release();
    region->slot = at::Tensor();
  }
  unit.unbind();
  unit.slot.state = UnitState::sharded;
  unit.slot.offset = -1;
  std::erase(resident_, &unit);
}

void Executor::renew(Unit& unit) {
  const int pins = std::exchange(unit.pins, 0);
  release(unit);
  unit.pins = pins;
}

void Executor::release_all() {
  release_if([](const Unit&) { return true; });
}

void Executor::release_overflow() {
  release_if([](const Unit& unit) { return unit.slot.offset < 0; });
}

void Executor::release_gathered() {
  release_if([](const Unit& unit) { return unit.slot.state == UnitState::gathered; });
}

template <class Which>
void Executor::release_if(Which which) {
  const std::vector<Unit*> all = resident_;
  std::exception_ptr first;
  for (Unit* unit : all) {
    if (unit->pins > 0 || !which(*unit)) continue;
    try {
      release(*unit);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Executor::drop_gathers() {
  const std::vector<Unit*> all = resident_;
  for (Unit* unit : all) {
    if (unit->slot.state != UnitState::gathering) continue;
    for (const auto& region : unit->regions) {
      region->gather_path->drop();
      region->slot = at::Tensor();
    }
    std::erase(resident_, unit);
  }
}

}  // namespace fsdp::detail
