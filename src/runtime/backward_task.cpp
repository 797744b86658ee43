// A backward, from the first unit it reads to the end of its graph task.
#include <fsdp/error.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstddef>

#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/graph_task.h"

namespace fsdp::detail {

// LibTorch exposes members of the current graph task, but not the task.
void on_task_failure(std::function<void(const std::exception_ptr&)> fn) {
  using torch::autograd::GraphTask;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* shown = reinterpret_cast<const char*>(torch::autograd::get_current_graph_task_exec_info());
  reinterpret_cast<const GraphTask*>(shown - kOffset)
      ->future_result_->addCallback([fn = std::move(fn)](c10::ivalue::Future& result) {
        if (result.hasError()) fn(result.exception_ptr());
      });
}

// Note [Backwards that fail]
// Autograd reports a backward that throws only to its caller, who may catch it. The other ranks are still in
// that backward, and need this rank there. So it gives up the group's operations, with the error's message:
// see Note [Ranks that give up]. Ranks that all throw alike go on together. If one throws alone, the others
// get its message at once, and so does its own next call. A backward that does nothing with other ranks, or
// has done all of it, concerns this rank only: it just notes why it might leave.
void Engine::give_up(const std::exception_ptr& error) {
  fail(error);
  gave_up_ = true;
  std::string words = "its backward threw: ";
  bool met_another = false;
  try {
    std::rethrow_exception(error);
  } catch (const CommError& known) {
    met_another = true;  // passed on to groups that have not seen it
    words += known.what();
  } catch (const c10::Error& known) {
    words += known.what_without_backtrace();
  } catch (const std::exception& known) {
    words += known.what();
  } catch (...) {
    words += "an exception of unknown type";
  }
  const bool alone = !gradients_.sync && !options.check_gradients && !options.sync_batchnorm &&
                     std::all_of(units.begin(), units.end(), [](const auto& unit) {
                       return unit->ranks() == 1 || (unit->spec.stays_gathered && !unit->peers_may_read);
                     });
  if (!alone)
    mesh.gave_up(words);
  else if (!met_another)
    mesh.leaving(words);
}

// Autograd drops the callback of a backward that threw without calling it. It may do so shortly after the
// caller got the error, on a thread of its own: outside of a backward no task runs, even if one still exists.
void Engine::drop_failed_task() {
  const bool inside = graph_task() != -1;
  if (task_ == -1 || (inside && !task_alive_.expired())) return;
  task_ = -1;
  captured_ = 0;
  gradients_.abandon();
  schedule_.spoil();
  phases_.rest();
  calls_.end();
  if (depth_ == 0) state_ = TrainingState::idle;
}

// Note [The end of a backward]
// A callback queued with autograd runs when its graph task ends. Recomputation and gradient penalties run
// tasks inside the task; they end earlier, and gradients they do not reduce are reduced by the outer one.
void Engine::enter_task() {
  drop_failed_task();
  if (task_ != -1) return;
  task_ = graph_task();
  calls_.begin_backward();
  inputs_only_ = !asks_for_any(params);
  const auto alive = std::make_shared<bool>(true);
  task_alive_ = alive;
  backward_seen_ = true;
  gradients_.begin_task(graph_stays());
  state_ = TrainingState::forward_backward;
  notice_writes();
  follow_scopes(/*between_tasks=*/false);
  note_memory();  // forward's memory
  torch::autograd::Engine::get_default_engine().queue_callback(
      [weak = weak_from_this(), task = task_, alive] {
        if (const auto engine = weak.lock()) engine->end_task(task);
      });
  on_task_failure([weak = weak_from_this(), task = task_](const std::exception_ptr& error) {
    const auto engine = weak.lock();
    if (!engine || engine->task_ != task) return;
    try {
      engine->give_up(error);
    } catch (const std::exception& failed) {  // autograd is about to throw `error`
      log_warn(std::string("other ranks could not be told of a backward that failed: ") + failed.what());
    }
  });
}

void Engine::end_task(int task) {
  if (task != task_) return;
  task_ = -1;
  synced_ = synced_ && gradients_.sync;
  const bool captured = std::exchange(captured_, 0) != 0;
  if (depth_ == 0) state_ = TrainingState::idle;
  bool together = true;  // the ranks have more to do together in this backward
  try {
    phases_.ends_backward();
    finish_task();
    together = false;
    if (std::exchange(gave_up_, false)) mesh.leaving("");
    tell_gradients(/*backward_ended=*/true);
    phases_.rest();
    calls_.end();
  } catch (...) {
    calls_.end();
    fail(std::current_exception());
    if (together) give_up(std::current_exception());
    schedule_.spoil();
    try {
      phases_.rest();
      gradients_.abandon();
    } catch (const std::exception&) {
      // The group has failed, and that error is thrown below.
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
}

// A barrier instead of a claim per unit: ranks whose execution order differs get an error. Units that stay
// gathered are still read, and wait for the end of keep_gathered().
void Engine::end_readings() {
  const auto ends = [&](const auto& unit) {
    return unit->peers_may_read && (!in_keep_gathered() || unit->slot.state == UnitState::sharded);
  };
  if (std::none_of(units.begin(), units.end(), ends)) return;
  mesh.row.barrier("end of the call");
  for (const auto& unit : units)
    unit->peers_may_read = unit->peers_may_read && unit->slot.state != UnitState::sharded;
}

}  // namespace fsdp::detail
