#include "runtime/ledger.h"

#include <numeric>
#include <set>

namespace fsdp::detail {

namespace {

// Slices may lie in one gradient shard, or each somewhere else.
int64_t gradient_bytes(const UnitRegion& region) {
  std::set<const c10::StorageImpl*> counted;
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& gradient) {
    if (gradient.defined() && gradient.has_storage() &&
        counted.insert(gradient.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<int64_t>(gradient.storage().nbytes());
  };
  count(region.gradient);
  for (const auto& param : region.unit->params)
    if (&param->region() == &region) count(param->slice.grad());
  return bytes;
}

}  // namespace

int64_t Ledger::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}); }

Ledger take_ledger(const Model& model, const Executor& executor, const Gradients& gradients) {
  Ledger ledger;
  for (const auto& unit : model.units) {
    for (const auto& region : unit->regions) {
      ledger[MemoryKind::shards] += static_cast<int64_t>(region->shard.nbytes());
      ledger[MemoryKind::gradient_shards] += gradient_bytes(*region);
      ledger[MemoryKind::parts] += region->gather_path->kept_bytes();
      ledger[MemoryKind::wires] += region->gather_path->wire_bytes();
    }
  }
  ledger[MemoryKind::slots] = executor.arena_bytes();
  ledger[MemoryKind::slots_outside] = executor.overflow_bytes();
  ledger[MemoryKind::buffers] = gradients.buffer_bytes();
  if (model.mode) ledger[MemoryKind::partial_sums] = model.mode->held_bytes();
  return ledger;
}

}  // namespace fsdp::detail
