#include "runtime/unit.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

namespace fsdp::detail {

namespace {

void point_at(UnitRegion& region, void* data) {
  region.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
      region.parameter_tag.point(data, region.storage.device()));
}

}  // namespace

ElementType element_type(at::ScalarType type) {
  return {.code = static_cast<int16_t>(type),
          .bytes = static_cast<int16_t>(c10::elementSize(type)),
          .floating = c10::isFloatingType(type)};
}

UnitRegion& UnitParam::region() const { return *unit->regions[static_cast<size_t>(placement.region)]; }

bool UnitParam::wants_grad() const {
  const bool changed = tensor.requires_grad() != requires_grad || slice.requires_grad() != requires_grad;
  return requires_grad != changed;
}

void UnitParam::attach(const c10::Storage& storage, at::ScalarType type) const {
  tensor.unsafeGetTensorImpl()->set_storage_and_dtype(storage, c10::scalarTypeToTypeMeta(type));
}

void UnitParam::move_to(const at::Tensor& like) const {
  at::Tensor there = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), like.key_set(),
                                                              tensor.dtype());
  there.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(there.getIntrusivePtr());
}

at::Tensor UnitParam::view_of(const at::Tensor& flat) const {
  return raw_view(flat, placement.offset, placement.param.shape, strides);
}

bool Unit::in_place() const {
  for (const auto& region : regions)
    if (!region->spec.in_place()) return false;
  return true;
}

int64_t Unit::planned_buffer_bytes() const {
  const bool shared = std::all_of(regions.begin(), regions.end(),
                                  [](const auto& region) { return region->reduce_path->shares_buffer(); });
  return shared ? spec.buffer_bytes() : 0;
}

bool Unit::complete() const {
  for (const auto& param : params)
    if (param->requires_grad && !param->gradient.fresh()) return false;
  return true;
}

bool Unit::stale() const {
  if (written) return true;
  for (const auto& region : regions)
    if (region->shard._version() != region->version) return true;
  return false;
}

void Unit::bind() {
  for (const auto& region : regions)
    if (!region->spec.in_place()) point_at(*region, region->slot.mutable_data_ptr());
  for (const auto& param : params) param->attach(param->region().storage, param->region().compute());
}

void Unit::unbind() {
  for (const auto& region : regions)
    if (!region->spec.in_place()) point_at(*region, region->nowhere.data());
  for (const auto& param : params)
    param->attach(param->region().spec.in_place() ? param->region().storage : param->poison,
                  param->region().compute());
}

// See Note [Shared shards].
void Unit::claim_shards() {
  if (!peers_may_read || slot.state != UnitState::sharded) return;
  for (const auto& region : regions) region->gather_path->claim(name());
  peers_may_read = false;
}

bool Unit::peers_read_shard() const {
  return std::any_of(regions.begin(), regions.end(),
                     [](const auto& region) { return region->gather_path->peers_read_shard(); });
}

bool Unit::saves_for_backward() const {
  return std::any_of(regions.begin(), regions.end(),
                     [](const auto& region) { return region->gather_path->saves_for_backward(); });
}

int64_t Unit::saved_bytes() const {
  int64_t bytes = 0;
  for (const auto& region : regions) bytes += region->gather_path->saved_bytes();
  return bytes;
}

bool Unit::needs_own_slot(GatherFrom from) const {
  return std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
    return region->gather_path->memory(from) == SlotMemory::own;
  });
}

// Makes LibTorch refuse a backward that began with the old values.
void Unit::note_write() {
  for (const auto& region : regions)
    if (region->host) region->host->written();
  note_promised_write();
}

void Unit::note_promised_write() {
  if (std::exchange(written, true)) return;
  for (const auto& param : params) param->tensor.unsafeGetTensorImpl()->bump_version();
}

// LibTorch does not know yet of writes without an operator (in full_params(), through a pointer).
void Unit::note_written() {
  const bool told = std::exchange(written, false);
  for (const auto& region : regions) region->version = region->shard._version();
  if (told) return;
  for (const auto& param : params) param->tensor.unsafeGetTensorImpl()->bump_version();
}

namespace {

// Sets `part_of` each region to the next `bytes_of` of `memory`, viewed as `type_of`.
template <class Part, class Bytes, class Type>
void carve(const Unit& unit, const at::Tensor& memory, int64_t offset, Part part_of, Bytes bytes_of,
           Type type_of) {
  for (const auto& region : unit.regions) {
    const int64_t bytes = bytes_of(*region);
    if (bytes == 0) continue;
    part_of(*region) = memory.narrow(0, offset, bytes).view(type_of(*region));
    offset += bytes;
  }
}

}  // namespace

void carve_slots(const Unit& unit, const at::Tensor& memory, int64_t offset) {
  carve(
      unit, memory, offset, [](UnitRegion& region) -> at::Tensor& { return region.slot; },
      [](const UnitRegion& region) { return region.spec.slot_bytes(); },
      [](const UnitRegion& region) { return region.compute(); });
}

void carve_buffers(const Unit& unit, const at::Tensor& memory, int64_t offset) {
  carve(
      unit, memory, offset, [](UnitRegion& region) -> at::Tensor& { return region.gradient.buffer; },
      [](const UnitRegion& region) { return region.spec.buffer_bytes(); },
      [](const UnitRegion& region) { return region.reduce(); });
}

}  // namespace fsdp::detail
