// Carries out the instructions of a cycle, planned or made on demand. See Note [Cycles].
#include "runtime/engine.h"
#include "runtime/graph_task.h"

namespace fsdp::detail {

void Engine::use(Unit& unit) {
  const Phase phase = graph_task() == -1 ? Phase::forward : Phase::backward;
  executor_.enter_phase(phase);
  if (unit.stale() && unit.slot.state != UnitState::sharded) executor_.renew(unit);
  if (phase == Phase::backward) enter_task();
  phases_.reads(unit, phase);
  unit.last_read = phase;
  const Access access{unit.id, phase, phase == Phase::backward && inputs_only_};
  const bool same_run = schedule_.current() != nullptr && *schedule_.current() == access;
  // Whole on every rank: ranks may differ in reading it, so it is no part of the common sequence.
  if (!unit.slot.is_private && !same_run) {
    go_on_to(unit, access);
    if (memory_.records()) sample_memory((phase == Phase::forward ? "forward " : "backward ") + unit.name());
  } else if (unit.slot.state == UnitState::gathered) {
    executor_.read(unit);
  } else {
    executor_.gather_now(unit, units);
    if (!unit.in_place()) note_memory();
  }
}

void Engine::go_on_to(Unit& unit, Access access) {
  if (access.phase == Phase::backward) gradients_.go_on();
  const Access* expected = schedule_.expected();
  const std::optional<Access> before =
      schedule_.current() ? std::optional(*schedule_.current()) : std::nullopt;
  const Moment* planned = schedule_.advance(access);
  if (planned == nullptr && expected != nullptr)
    executor_.remark("'" + unit.name() + "' came where '" +
                     units[static_cast<size_t>(expected->unit)]->name() + "' was planned");
  if (planned != nullptr) {
    const bool ready = !schedule_.went_over() || change_over();
    const bool there = obey(planned->steps, ready);
    tell_gradients(/*backward_ended=*/false);
    if (there) return executor_.read(unit);
  }
  schedule_.leave_plan();
  if (planned == nullptr && access.phase == Phase::backward)
    gradients_.go_on_unplanned(before ? plans_.boundary(kind(), *before, access) : nullptr);
  for (const Instruction& step : executor_.gather_now(unit, units)) schedule_.record(step);
  if (expected != nullptr) mesh.row.share_order();
  note_memory();
}

// Carries out the instructions of a schedule point. If memory is not as planned (`ready` is false, or false
// is returned), gradients follow the plan and parameters are gathered on demand.
bool Engine::obey(const std::vector<Instruction>& steps, bool ready) {
  executor_.release_overdue();
  for (const Instruction& step : steps) {
    if (task_ != -1) phases_.obeys(step);
    if (of_gradients(step.action))
      gradients_.obey(step);
    else if (ready)
      ready = executor_.obey(step, *units[static_cast<size_t>(step.unit)]);
  }
  return ready;
}

// The cycle is over: also releases units that the plan does not know of.
void Engine::release_as_planned() {
  if (schedule_.at_end()) obey(schedule_.plan()->after, true);
  release_passing();
}

// After a cycle that followed its plan, units that stay gathered lie where the next cycle expects them.
void Engine::release_passing() {
  if (!kept_.empty() && schedule_.at_end())
    executor_.release_overflow();
  else
    executor_.release_all();
}

// The cycle has just changed to another plan, which expects other contents of memory.
bool Engine::change_over() {
  gradients_.change_over(schedule_.expected_buffers());
  return executor_.change_over(schedule_.expected_residents(), units);
}

}  // namespace fsdp::detail
