// Flat buffers for arriving gradients: at planned offsets of an arena, or in memory of their own.
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/gradients.h"
#include "runtime/memory_report.h"
#include "watch/quiet.h"

namespace fsdp::detail {

void Gradients::reserve(int64_t bytes) {
  if (bytes <= (arena_.defined() ? arena_.numel() : 0)) return;
  const Quiet quiet;
  arena_ = at::Tensor();
  arena_ = mesh_.row.allocate(MemoryUse::reduce, bytes, at::kByte);
}

int64_t Gradients::buffer_bytes() const {
  int64_t bytes = arena_.defined() ? arena_.numel() : 0;
  for (const auto& unit : units_)
    for (const auto& region : unit->regions)
      if (region->gradient.buffer.defined() && !region->gradient.buffer.is_same(region->gradient.shard) &&
          !in_arena(*region))
        bytes += static_cast<int64_t>(region->gradient.buffer.nbytes());
  return bytes;
}

// At the planned offset if there is one; there is none while gradients are kept back, or without a plan.
void Gradients::open(Unit& unit) {
  if (unit.gradient.buffer_offset >= 0) take_planned_place(unit);
  open_regions(unit);
  unit.gradient.open = true;
}

// A region may have been unfrozen since the unit was opened.
void Gradients::open_regions(Unit& unit) {
  bool padded = !unit.gradient.open;
  for (const auto& region : unit.regions) {
    if (!region->spec.layout.trainable || region->gradient.buffer.defined()) continue;
    region->gradient.buffer = own_buffer(unit, *region);
    padded = true;
  }
  if (padded) clear_padding(unit);
}

void Gradients::take_planned_place(Unit& unit) {
  carve_buffers(unit, arena_, unit.gradient.buffer_offset);
  for (const auto& region : unit.regions)
    if (region->gradient.buffer.defined()) mesh_.row.claim(as_reals(region->gradient.buffer));
}

bool Gradients::in_arena(const UnitRegion& region) const {
  return arena_.defined() && region.gradient.buffer.defined() && region.gradient.buffer.is_alias_of(arena_);
}

// A gradient may arrive on this rank earlier than the plan expects; ranks must reduce in the same memory.
void Gradients::move_to_plan(Unit& unit) {
  if (unit.gradient.buffer_offset < 0) return;
  std::vector<at::Tensor> here;
  for (const auto& region : unit.regions) here.push_back(region->gradient.buffer);
  if (std::all_of(unit.regions.begin(), unit.regions.end(), [&](const auto& region) {
        return !region->gradient.buffer.defined() || in_arena(*region);
      }))
    return;
  take_planned_place(unit);
  for (size_t i = 0; i < here.size(); ++i)
    if (here[i].defined()) unit.regions[i]->gradient.buffer.copy_(here[i]);
}

// Without a plan every rank's buffers are its own memory, even those it opened by the plan it has left.
void Gradients::leave_plan() {
  for (const auto& unit : units_) {
    unit->gradient.buffer_offset = -1;
    for (const auto& region : unit->regions)
      if (unit->gradient.open && in_arena(*region)) region->gradient.buffer = region->gradient.buffer.clone();
  }
}

// Drops offsets of buffers whose gradients did not arrive: they belong to the plan that has ended.
void Gradients::end_cycle() {
  for (const auto& unit : units_)
    if (!unit->gradient.open) unit->gradient.buffer_offset = -1;
}

// A whole gradient that needs no cast is summed in its final memory.
at::Tensor Gradients::own_buffer(const Unit& unit, UnitRegion& region) {
  if (region.reduce_path->in_buffer() && !region.spec.gradient_on_host &&
      region.reduce() == region.gradient_type() && mode_ == nullptr && !shards_.busy(region)) {
    shards_.make(region);
    if (!region.gradient.shown) return region.gradient.shard;
    GradientShards::forget(region);
  }
  return with_memory_report(*unit.engine, "a gradient buffer", region.spec.buffer_bytes(), [&] {
    return at::empty({region.spec.layout.total(unit.ranks())}, region.home.options().dtype(region.reduce()));
  });
}

void Gradients::clear_padding(Unit& unit) {
  std::vector<at::Tensor> gaps;
  for (const auto& region : unit.regions) {
    if (!region->gradient.buffer.defined()) continue;
    int64_t end = 0;
    const auto gap_before = [&](int64_t start) {
      if (start > end) gaps.push_back(region->gradient.buffer.narrow(0, end, start - end));
    };
    for (const auto& param : unit.params) {
      if (&param->region() != region.get()) continue;
      gap_before(param->placement.offset);
      end = param->placement.offset + param->placement.numel;
    }
    gap_before(region->gradient.buffer.numel());
  }
  if (!gaps.empty()) at::_foreach_zero_(gaps);
}

}  // namespace fsdp::detail
