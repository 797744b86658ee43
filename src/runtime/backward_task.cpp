// A backward, from the first unit it reads to the end of its graph task.
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "runtime/engine.h"
#include "runtime/graph_task.h"

namespace fsdp::detail {

// Autograd drops the callback of a backward that threw without calling it. It may do so a moment after the
// error has reached its owner, on a thread of its own: outside of a backward no task runs, whoever holds it.
void Engine::drop_failed_task() {
  const bool inside = graph_task() != -1;
  if (task_ == -1 || (inside && !task_alive_.expired())) return;
  task_ = -1;
  captured_ = 0;
  gradients_.abandon();
  schedule_.spoil();
  phases_.rest();
  if (depth_ == 0) state_ = TrainingState::idle;
}

// Note [The end of a backward]
// A callback queued with autograd runs when its graph task ends. Recomputation and gradient penalties run
// tasks inside the task; they end earlier, and what they leave is still reduced at the end of the outer one.
void Engine::enter_task() {
  drop_failed_task();
  if (task_ != -1) return;
  task_ = graph_task();
  const auto alive = std::make_shared<bool>(true);
  task_alive_ = alive;
  backward_seen_ = true;
  gradients_.begin_task(graph_stays());
  state_ = TrainingState::forward_backward;
  notice_writes();
  follow_scopes(/*between_tasks=*/false);
  note_memory();  // what forward left
  torch::autograd::Engine::get_default_engine().queue_callback(
      [weak = weak_from_this(), task = task_, alive] {
        if (const auto engine = weak.lock()) engine->end_task(task);
      });
}

void Engine::end_task(int task) {
  if (task != task_) return;
  task_ = -1;
  synced_ = synced_ && gradients_.sync;
  const bool captured = std::exchange(captured_, 0) != 0;
  if (depth_ == 0) state_ = TrainingState::idle;
  try {
    phases_.ends_backward();
    finish_task();
    phases_.rest();
  } catch (...) {
    fail(std::current_exception());
    schedule_.spoil();
    try {
      phases_.rest();
      gradients_.abandon();
    } catch (const std::exception&) {
      // The group has failed, which is what is thrown below.
    }
    throw;
  }
  if (!captured) return;
  const auto told = std::make_exception_ptr(c10::Error(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      "fsdp: torch::autograd::grad over the parameters of a sharded model gives the gradients of this "
      "rank's batch only; call backward() and read model.parameters()[i].grad()"));
  fail(told);
  std::rethrow_exception(told);
}

void Engine::finish_task() {
  const Moment* planned = schedule_.end_backward();
  mesh.check_order(/*now=*/planned == nullptr);
  if (schedule_.went_over()) change_over();
  gradients_.at_task_end(planned);
  note_memory();
  sample_memory("end of backward");
  memory_.end_backward();
  if (gradients_.sync)
    for (const auto& check : after_backward) check(*this);
  if (!schedule_.following() || schedule_.at_end()) {
    release_as_planned();
    drop_saved();
    end_readings();
  }
  tell_gradients(/*backward_ended=*/true);
}

// A barrier, where claiming every unit would do: ranks that came here by different ways are told so.
void Engine::end_readings() {
  if (std::none_of(units.begin(), units.end(), [](const auto& unit) { return unit->peers_may_read; })) return;
  mesh.row.barrier("shards are not read");
  for (const auto& unit : units)
    unit->peers_may_read = unit->peers_may_read && unit->slot.state != UnitState::sharded;
}

}  // namespace fsdp::detail
