#include "plan/buffer_places.h"

#include <deque>

#include "plan/arena.h"

namespace fsdp::detail {

namespace {

// The buffer of one reduction, and the instructions that name it. Positions count all instructions.
struct Buffer {
  UnitId unit = 0;
  int32_t opened = 0;
  int32_t freed = 0;
  std::vector<Instruction*> steps;
};

// Buffers that were reduced, in the order in which they were freed.
std::vector<Buffer> find_buffers(std::vector<Moment>& moments, size_t units) {
  std::vector<std::deque<Buffer>> open(units), reduced(units);
  std::vector<Buffer> done;
  int32_t position = 0;
  for (Moment& moment : moments) {
    for (Instruction& step : moment.steps) {
      ++position;
      if (step.action == Action::agree) continue;
      auto& waiting = open[static_cast<size_t>(step.unit)];
      auto& summing = reduced[static_cast<size_t>(step.unit)];
      if (step.action == Action::open) waiting.push_back({step.unit, position, 0, {&step}});
      if (step.action == Action::reduce && !waiting.empty()) {
        waiting.front().steps.push_back(&step);
        summing.push_back(std::move(waiting.front()));
        waiting.pop_front();
      }
      const bool frees = step.action == Action::reduce_across || step.action == Action::settle;
      if (!frees || summing.empty()) continue;
      summing.front().freed = position;
      done.push_back(std::move(summing.front()));
      summing.pop_front();
    }
  }
  return done;
}

// Adds an open to every reduction of planned memory that has none, and removes opens without a reduction.
void pair_opens(std::vector<Moment>& moments, const std::vector<UnitNeed>& units) {
  std::vector<int> open(units.size(), 0);
  for (Moment& moment : moments) {
    for (size_t i = 0; i < moment.steps.size(); ++i) {
      const Instruction step = moment.steps[i];
      if (step.action == Action::agree) continue;
      const auto unit = static_cast<size_t>(step.unit);
      if (step.action == Action::open) ++open[unit];
      if (step.action != Action::reduce || units[unit].buffer_bytes == 0) continue;
      if (open[unit] == 0)
        moment.steps.insert(moment.steps.begin() + static_cast<std::ptrdiff_t>(i++),
                            {.action = Action::open, .unit = step.unit});
      else
        --open[unit];
    }
  }
  // The remaining opens are the latest; their gradients never arrived.
  for (auto moment = moments.rbegin(); moment != moments.rend(); ++moment)
    for (size_t i = moment->steps.size(); i-- > 0;) {
      const Instruction& step = moment->steps[i];
      if (step.action != Action::open) continue;
      const auto unit = static_cast<size_t>(step.unit);
      if (units[unit].buffer_bytes > 0 && open[unit]-- <= 0) continue;
      moment->steps.erase(moment->steps.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

}  // namespace

int64_t place_buffers(std::vector<Moment>& moments, const std::vector<UnitNeed>& units) {
  pair_opens(moments, units);
  const std::vector<Buffer> buffers = find_buffers(moments, units.size());
  std::vector<Lifetime> lifetimes;
  for (const Buffer& one : buffers)
    lifetimes.push_back({one.opened, one.freed, units[static_cast<size_t>(one.unit)].buffer_bytes});
  const Packing packing = pack(lifetimes);
  for (size_t i = 0; i < buffers.size(); ++i)
    for (Instruction* step : buffers[i].steps) step->offset = packing.offsets[i];
  return packing.bytes;
}

}  // namespace fsdp::detail
