#include "runtime/ledger.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/engine.h"

namespace fsdp::detail {

namespace {

// Slices may lie in one gradient shard, or each in memory of its own.
int64_t gradient_bytes(const UnitRegion& region) {
  std::set<const c10::StorageImpl*> counted;
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& gradient) {
    if (gradient.defined() && gradient.has_storage() &&
        counted.insert(gradient.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<int64_t>(gradient.storage().nbytes());
  };
  count(region.gradient.shard);
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
      if (!region->spec.on_host) ledger[MemoryKind::shards] += static_cast<int64_t>(region->shard.nbytes());
      if (!region->spec.gradient_on_host) ledger[MemoryKind::gradient_shards] += gradient_bytes(*region);
      ledger[MemoryKind::saved_for_backward] += region->gather_path->saved_bytes();
      ledger[MemoryKind::wires] += region->gather_path->wire_bytes();
      if (region->gradient.row_sum.defined())
        ledger[MemoryKind::partial_sums] += static_cast<int64_t>(region->gradient.row_sum.nbytes());
    }
  }
  ledger[MemoryKind::slots] = executor.arena_bytes();
  ledger[MemoryKind::private_slots] = executor.overflow_bytes();
  ledger[MemoryKind::buffers] = gradients.buffer_bytes();
  if (model.mode) ledger[MemoryKind::partial_sums] += model.mode->held_bytes();
  return ledger;
}

MemoryStats Engine::memory_stats(int64_t optimizer_bytes) const {
  MemoryStats stats;
  int64_t whole = 0;
  for (const auto& unit : units) {
    stats.all_gathers += unit->slot.gathers;
    stats.reduce_scatters += unit->gradient.reduces;
    for (const auto& param : unit->params)
      whole += param->placement.numel * static_cast<int64_t>(c10::elementSize(param->region().master())) *
               (param->requires_grad ? 2 : 1);
  }
  const Ledger now = ledger();
  stats.parameter_bytes = now[MemoryKind::shards];
  stats.gradient_bytes = now[MemoryKind::gradient_shards];
  stats.arena_bytes = now[MemoryKind::slots];
  stats.buffer_bytes = now[MemoryKind::buffers];
  stats.overflow_bytes = now[MemoryKind::private_slots] + now[MemoryKind::saved_for_backward];
  stats.partial_sum_bytes = now[MemoryKind::partial_sums];
  stats.wire_bytes = now[MemoryKind::wires];
  stats.optimizer_bytes = optimizer_bytes;
  stats.host_bytes = host ? host->memory->bytes() : 0;
  stats.current_bytes = now.total() + optimizer_bytes;
  stats.peak_bytes = std::max(memory_.peak(), now.total());
  stats.step_peak_bytes = std::max(memory_.step_peak(), now.total());
  stats.saved_bytes = whole - now.total();
  return stats;
}

void Engine::sample_memory(const std::string& moment) {
  if (!memory_.records() || mode_ != Mode::train) return;
  note_memory();
  memory_.sample(moment, memory_stats(0));
}

}  // namespace fsdp::detail
