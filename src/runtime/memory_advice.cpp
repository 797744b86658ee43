#include "runtime/memory_advice.h"

#include <algorithm>
#include <functional>

#include "base/bytes_text.h"

namespace fsdp::detail {

namespace {

// One line of advice, and the bytes it saves; 0: unknown.
struct Line {
  int64_t saves = 0;
  std::string text;
};
using Advice = std::vector<Line>;

// Bytes of slots for `limit` passing units (0: all) and for those kept from forward to backward; with
// `reshards` none is kept.
int64_t slot_bytes(const Model& model, int limit, bool reshards) {
  std::vector<int64_t> passing;
  int64_t bytes = 0;
  for (const auto& unit : model.units) {
    if (unit->spec.stays_gathered && !reshards)
      bytes += unit->arena_bytes();
    else
      passing.push_back(unit->arena_bytes());
  }
  std::sort(passing.begin(), passing.end(), std::greater<>());
  if (limit > 0 && passing.size() > static_cast<size_t>(limit)) passing.resize(static_cast<size_t>(limit));
  for (const int64_t one : passing) bytes += one;
  return bytes;
}

void advise_slots(Advice& advice, const Model& model) {
  const int limit = model.options.limit_all_gathers;
  const int64_t now = slot_bytes(model, limit, false);
  if (const int64_t saved = now - slot_bytes(model, 1, false); limit != 1 && saved > 0)
    advice.push_back({saved, "limit_all_gathers = 1 saves " + bytes_text(saved) + " of slots"});
  const Strategy strategy = model.options.strategy;
  if (const int64_t saved = now - slot_bytes(model, limit, true); saved > 0)
    advice.push_back(
        {saved, (strategy == Strategy::shard_grad_op        ? "Strategy::full_shard"
                 : strategy == Strategy::hybrid_shard_zero2 ? "Strategy::hybrid_shard"
                                                            : "UnitOptions::reshard_after_forward") +
                    std::string(" saves ") + bytes_text(saved) + " of slots"});
  if (!model.options.precision.param && now > 0)
    advice.push_back({now / 2, "precision = fsdp::bf16() halves slots in fp32, of " + bytes_text(now)});
}

void advise_units(Advice& advice, const Model& model) {
  const Unit* largest = nullptr;
  for (const auto& unit : model.units)
    if (unit->params.size() > 1 && unit->arena_bytes() > 0 &&
        (largest == nullptr || unit->arena_bytes() > largest->arena_bytes()))
      largest = unit.get();
  if (largest != nullptr && model.options.max_unit_bytes == 0)
    advice.push_back({0, "smaller units by wrap, or max_unit_bytes: the largest, '" + largest->name() +
                             "', has " + bytes_text(largest->arena_bytes())});
}

// Gradients that are not reduced are unsharded: all of them, under no_sync().
void advise_accumulation(Advice& advice, const Model& model, const Ledger& ledger) {
  const int64_t buffers = ledger[MemoryKind::buffers];
  const int64_t shards = buffers / std::max(1, model.mesh.row.size());
  if (model.in_no_sync() && buffers > shards)
    advice.push_back({buffers - shards,
                      "no no_sync(), so that every backward reduces: " + bytes_text(buffers) +
                          " of unsharded gradients become " + bytes_text(shards) + " of gradient shards"});
}

// A module that is not in use yet was constructed whole.
void advise_construction(Advice& advice, const Model& model) {
  if (!model.called)
    advice.push_back({0,
                      "fsdp::on_meta() around the construction of the module: it takes no memory until "
                      "fully_shard() makes each rank's part"});
}

void advise_state(Advice& advice, const Model& model, const Ledger& ledger) {
  const int64_t state = ledger[MemoryKind::shards] + ledger[MemoryKind::gradient_shards];
  const int ranks = model.world.size();
  if (model.options.strategy == Strategy::no_shard && ranks > 1)
    advice.push_back(
        {state - state / ranks, "Strategy::full_shard saves " + bytes_text(state - state / ranks) +
                                    " of shards and gradient shards, and as much of every moment"});
  const Offload& offload = model.options.offload;
  if (!policy_of(model.world.device()).can_offload || offload.params) return;
  if (!model.options.gather_codec)
    advice.push_back({state, "offload.params keeps " + bytes_text(state) +
                                 " of shards and gradient shards in host memory, and moments too"});
  const int64_t gradients = ledger[MemoryKind::gradient_shards];
  if (!offload.gradients)
    advice.push_back({gradients, "offload.gradients keeps " + bytes_text(gradients) +
                                     " of gradient shards in host memory"});
  if (!offload.optimizer)
    advice.push_back({0, "offload.optimizer keeps the moments of fsdp::AdamW in host memory"});
}

}  // namespace

std::vector<std::string> memory_advice(const Model& model, const Ledger& ledger) {
  Advice advice;
  advise_accumulation(advice, model, ledger);
  advise_slots(advice, model);
  advise_units(advice, model);
  advise_state(advice, model, ledger);
  advise_construction(advice, model);
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Line& a, const Line& b) { return a.saves > b.saves; });
  std::vector<std::string> lines;
  for (Line& line : advice) lines.push_back(std::move(line.text));
  lines.emplace_back("smaller batches, with gradient accumulation: less memory for activations");
  lines.emplace_back(
      "activation checkpointing, fsdp::recompute(), of more blocks: less memory for activations");
  return lines;
}

}  // namespace fsdp::detail
