// Cycles of a model, and the plans made from them. See Note [Cycles].
#include <set>

#include "base/bytes_text.h"
#include "base/host_pool.h"
#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/memory_report.h"
#include "runtime/plan_options.h"

namespace fsdp::detail {

void Engine::begin_cycle(Mode mode) {
  const bool waiting = in_cycle_ && mode_ == Mode::train && !backward_seen_ && schedule_.current() != nullptr;
  if (waiting && mode == Mode::eval) {
    if (++evaluations_ > kMostEvaluations) schedule_.spoil();
    return;
  }
  if (waiting && !schedule_.spoilt()) return;
  end_cycle();
  mode_ = mode;
  if (mode == Mode::train) memory_.begin_training_cycle();
  schedule_.begin(plans_.likely(kind()));
  in_cycle_ = true;
  backward_seen_ = false;
  evaluations_ = 0;
  synced_ = true;
}

void Engine::end_cycle() {
  if (!std::exchange(in_cycle_, false)) return;
  executor_.expect_backward(false);
  release_passing();
  drop_saved();
  gradients_.end_cycle();
  if (mode_ == Mode::train && !(backward_seen_ && synced_)) return;
  if (schedule_.worth_planning())
    adopt_plan();
  else if (schedule_.at_end())
    plans_.followed(kind(), schedule_.plan());
}

void Engine::adopt_plan() {
  std::vector<UnitNeed> needs;
  for (const auto& unit : units)
    needs.push_back({.slot_bytes = unit->arena_bytes(),
                     .stays_gathered = unit->spec.stays_gathered,
                     .buffer_bytes = unit->planned_buffer_bytes(),
                     .stays_after_backward =
                         !kept_.empty() && kept_[static_cast<size_t>(unit->id)] && !unit->slot.is_private});
  schedule_.leave_plan();
  plans_.add(kind(), schedule_.recorded(), needs, plan_options(options, units));
  log_debug([&] {
    return "rank " + std::to_string(world.rank()) + ", in " + calls_.last() +
           ", planned the cycle before it: " + std::to_string(schedule_.recorded().size()) +
           " schedule points, slots " + bytes_text(plans_.arena_bytes()) + ", gradient buffers " +
           bytes_text(plans_.buffer_bytes());
  });
  try {
    reserve_planned();
  } catch (...) {
    plans_.clear();  // they expect memory that does not exist
    throw;
  }
  if (mode_ == Mode::train) {
    const std::set<UnitId> read = plans_.read_in_backward(kind());
    for (const auto& unit : units) unit->read_backward = read.contains(unit->id);
  }
  trim_host_pool();  // memory that only the recorded cycle needed
  note_memory();
}

// The first training plan shows how much memory the slots need, which is less than was first allocated.
void Engine::reserve_planned() {
  const bool first = mode_ == Mode::train && plans_.trainings() == 1;
  if (first || plans_.arena_bytes() > executor_.arena_bytes()) reserve_slots(plans_.arena_bytes());
  if (!gradients_.alone())
    with_memory_report(*this, "gradient buffers", plans_.buffer_bytes(),
                       [&] { gradients_.reserve(plans_.buffer_bytes()); });
}

void Engine::drop_saved() {
  for (const auto& unit : units) executor_.drop_saved(*unit);
}

// The first reader after an optimizer's step must see the new values, and a backward that began before it
// must not continue with the old ones.
void Engine::notice_writes() {
  for (const auto& unit : units) {
    if (!unit->stale()) continue;
    if (mode) mode->check_write();
    if (unit->pins == 0) executor_.release(*unit);
    executor_.drop_saved(*unit);
    unit->note_written();
  }
}

// Parameters may be frozen and unfrozen between steps, in the module or through their slices. A frozen region
// gets gradient memory when one of its parameters is unfrozen, and keeps it.
void Engine::follow_requires_grad() {
  bool changed = false, grown = false;
  for (UnitParam* param : params) {
    const bool wanted = param->wants_grad();
    if (wanted == param->requires_grad) continue;
    changed = true;
    grown = grown || (wanted && !param->region().spec.layout.trainable);
    param->requires_grad = wanted;
    param->tensor.set_requires_grad(wanted);
    param->slice.set_requires_grad(wanted);
    if (!wanted) param->slice.mutable_grad() = at::Tensor();
    param->region().spec.layout.trainable = param->region().spec.layout.trainable || wanted;
    watch(*param);
  }
  if (!changed) return;
  end_cycle();
  if (grown) plans_.clear();  // buffers are larger now
  trained_.clear();
  for (const UnitParam* param : params) trained_.push_back(param->requires_grad);
}

void Engine::forget_gradients() {
  gradients_.drop();
  if (mode) mode->restart(units);
}

}  // namespace fsdp::detail
