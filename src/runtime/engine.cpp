#include "runtime/engine.h"

#include <fsdp/error.h>

#include <algorithm>

#include "runtime/checks.h"
#include "runtime/graph_task.h"
#include "runtime/memory_report.h"
#include "watch/messages.h"
#include "watch/quiet.h"

namespace fsdp::detail {

Engine::Engine(const World& world_, torch::nn::Module& module_, const ShardOptions& options_, Mesh mesh_,
               std::unique_ptr<StepMode> mode_)
    : Model(world_, module_, options_, std::move(mesh_), std::move(mode_)),
      executor_(world_.device(), options_.limit_all_gathers),
      gradients_(mesh, mode.get(), options_.check_gradients, world_.device(), schedule_, units, host.get()),
      phases_(units, world_.rank()),
      calls_(world_, module_.name()) {}

Engine::~Engine() {
  try {
    if (owes_end_ || std::uncaught_exceptions() > 0) executor_.drop_gathers();
    executor_.release_all();
  } catch (const std::exception&) {
    // The group has failed; its memory is not read again.
  }
  // Views and saved tensors outlive the memory: reading them throws a message.
  for (const auto& unit : units) {
    for (const auto& param : unit->params) param->attach(param->poison, param->region().compute());
    for (const auto& region : unit->regions)
      region->storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
          dropped_message());
  }
}

Engine& current(const std::shared_ptr<Engine>& engine) {
  Engine* at = engine.get();
  while (at->merged_into) at = at->merged_into.get();
  return *at;
}

Model& model_of(const std::shared_ptr<Engine>& engine) { return current(engine); }

void Engine::start() {
  for (const auto& unit : units) {
    unit->engine = this;
    unit->id = static_cast<UnitId>(&unit - units.data());
  }
  // Slots of sharded units are memory that ranks share; a unit that is whole on every rank then has its own.
  const bool sharded =
      std::any_of(units.begin(), units.end(), [](const auto& unit) { return unit->ranks() > 1; });
  executor_.share(sharded && !options.gather_codec ? &mesh.row : nullptr);
  for (const auto& unit : units) unit->slot.is_private = sharded && unit->ranks() == 1;
  for (UnitParam* param : params) watch(*param);
  registered = registered_params(module);
  gradients_.start();
  reserve_slots(Executor::first_estimate(units, options.limit_all_gathers));
  note_memory();
}

void Engine::reserve_slots(int64_t bytes) {
  with_memory_report(*this, "slots of gathered units", bytes, [&] { executor_.reserve(bytes); });
}

void Engine::enter(const std::vector<at::Tensor>& arguments) {
  if (depth_++ > 0 || graph_task() != -1) return;
  calls_.begin_forward(at::GradMode::is_enabled());
  try {
    TORCH_CHECK(state_ != TrainingState::summon_full_params,
                "fsdp: the model was called inside full_params(); end that scope first");
    end_failed_call();
    check_module();
    check_scopes();
    drop_failed_task();
    follow_requires_grad();
    follow_scopes(/*between_tasks=*/true);
    if (at::GradMode::is_enabled() && std::exchange(first_batch_, false)) warn_of_equal_batches(arguments);
    notice_writes();
    called = true;
    const bool trains = at::GradMode::is_enabled();
    begin_cycle(trains ? Mode::train : Mode::eval);
    executor_.expect_backward(mode_ == Mode::train);
    if (mode && trains) {
      gradients_.at_forward();
      mode->before_forward();
    }
    state_ = TrainingState::forward_backward;
  } catch (...) {
    calls_.end();
    --depth_;
    fail(std::current_exception());
    throw;
  }
}

void Engine::leave() {
  const bool failed = std::exchange(call_failed_, false);
  if (--depth_ > 0 || graph_task() != -1) return;
  phases_.rest();
  if (failed) {
    calls_.end();
    return leave_failed();
  }
  if (mode_ != Mode::train) {
    state_ = TrainingState::idle;
    executor_.expect_backward(false);
    release_as_planned();
    end_readings();
  }
  calls_.end();
}

// An exception leaves a call of the model. The caller gets it now. Steps that would wait for other ranks,
// which may compute for a while yet, are done when the model is used again. If it is not, this rank leaves
// the group, and the others get the reason.
void Engine::fail_call(std::exception& error) {
  call_failed_ = true;
  if (std::current_exception()) fail(std::current_exception());
  const bool inner = depth_ > 1 || graph_task() != -1;  // the call around it may catch this
  if (inner || dynamic_cast<const CommError*>(&error) != nullptr) return;
  auto* known = dynamic_cast<c10::Error*>(&error);
  const bool ours = known != nullptr && known->msg().starts_with("fsdp:");
  if (known != nullptr && !ours && known->context().empty() && phases_.in_forward() != nullptr)
    known->add_context("after operators that read unit '" + phases_.in_forward()->name() + "'");
  mesh.leaving(std::string("its call of the model threw: ") +
               (known != nullptr ? known->what_without_backtrace() : error.what()));
  if (known != nullptr && is_no_memory(error))
    throw with_report(*this, "an operator inside the model", 0, error);
}

void Engine::leave_failed() {
  schedule_.spoil();
  state_ = TrainingState::idle;
  owes_end_ = true;
  executor_.expect_backward(false);
  executor_.release_gathered();
}

void Engine::end_failed_call() {
  if (gave_up_) mesh.leaving("");
  if (!std::exchange(owes_end_, false)) return;
  mesh.leaving("");
  executor_.release_all();
  end_readings();
}

bool Engine::may_read() const { return depth_ > 0 || graph_task() != -1; }

void Engine::fail(std::exception_ptr error) { last_error_ = std::move(error); }

// Releases all units before it waits for any claim: ranks may write to their units in different orders.
void Engine::before_write(Unit& unit) {
  const std::lock_guard lock(mutex);
  try {
    TORCH_CHECK(!in_keep_gathered(), "fsdp: the parameters of unit '", unit.name(),
                "' are written inside keep_gathered(), where other ranks do not gather them again; end that "
                "scope before the optimizer steps");
    announce_change();
    const Quiet quiet;
    if (unit.peers_may_read && telling_) {
      if (unit.pins == 0) executor_.release(unit);  // see Note [Told gradients]
      unit.claim_shards();
    } else if (unit.peers_may_read) {
      executor_.release_all();
      for (const auto& one : units) one->claim_shards();
    }
    check_write(unit);
    if (unit.pins == 0) executor_.release(unit);  // the next reader gathers the new values
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  unit.note_write();
}

void Engine::check_write(const Unit& unit) const {
  TORCH_CHECK(!unit.peers_may_read, "fsdp: the parameters of unit '", unit.name(),
              "' are written while this operator, one around it or a use() scope reads them; other ranks may "
              "read them too. Write outside of it, or clone() what is read.");
}

void Engine::check_between_steps(const char* doing) {
  end_failed_call();
  drop_failed_task();
  TORCH_CHECK(depth_ == 0 && task_ == -1 && full_scopes_.empty(), "fsdp: ", doing,
              " inside a call of the model, a backward or full_params()");
  wait_for_host();
}

// Raw pointers bypass the observer.
void Engine::wait_for_host() const {
  for (const auto& unit : units)
    for (const auto& region : unit->regions)
      if (region->host) {
        region->host->wait_for_updates();
        region->host->wait_for_uploads();
      }
}

void Engine::quiesce() {
  TORCH_CHECK(state_ != TrainingState::summon_full_params && depth_ == 0,
              "fsdp: a captured step inside full_params() or a call of the model");
  end_failed_call();
  drop_failed_task();
  check_module();
  end_cycle();
  executor_.release_all();
  executor_.forget_streams();
  gradients_.forget_streams();
}

std::vector<at::Tensor> Engine::step_memory() const {
  std::vector<at::Tensor> memory{executor_.arena()};
  for (const auto& unit : units)
    for (const auto& region : unit->regions) memory.push_back(region->shard);
  return memory;
}

void Engine::absorb(Engine& inner) {
  inner.executor_.expect_backward(false);
  inner.executor_.release_all();
  for (const auto& unit : inner.units) inner.executor_.drop_saved(*unit);
  inner.executor_.reserve(0);
  called = called || inner.called;
  no_sync_scopes_.merge(inner.no_sync_scopes_);
  keep_scopes_.merge(inner.keep_scopes_);
  if (inner.on_gradient_ && !on_gradient_) set_on_gradient(std::move(inner.on_gradient_));
  gradients_.sync = !holds_all() || mesh.all.size() == 1;
  for (auto& unit : inner.units) {
    units.push_back(std::move(unit));
  }
  mesh.adopted.push_back(inner.mesh.row);
  mesh.adopted.insert(mesh.adopted.end(), inner.mesh.adopted.begin(), inner.mesh.adopted.end());
  inner.units.clear();
  inner.params.clear();
}

}  // namespace fsdp::detail
