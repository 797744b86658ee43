#include "runtime/engine.h"

#include <ATen/autocast_mode.h>
#include <fsdp/error.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/host_pool.h"
#include "base/log.h"
#include "runtime/checks.h"
#include "watch/messages.h"
#include "watch/quiet.h"

namespace fsdp::detail {

namespace {

int graph_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace

Engine::Engine(const World& world_, torch::nn::Module& module_, const ShardOptions& options_, Mesh mesh_,
               std::unique_ptr<StepMode> mode_)
    : world(world_),
      module_owner(module_.shared_from_this()),
      module(module_),
      options(options_),
      mesh(std::move(mesh_)),
      mode(std::move(mode_)),
      executor_(world_.device(), options_.limit_all_gathers),
      gradients_(mesh, mode.get(), options_.check_gradients, world_.device(), schedule_, units) {}

Engine::~Engine() {
  try {
    if (owes_end_ || std::uncaught_exceptions() > 0) executor_.drop_gathers();
    executor_.release_all();
  } catch (const std::exception&) {
    // The group has failed; nothing is read from its memory again.
  }
  // Views and saved tensors outlive the memory: they are answered in words.
  for (const auto& unit : units) {
    for (const auto& param : unit->params) param->attach(param->poison, param->region().compute);
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

void Engine::start() {
  for (const auto& unit : units) {
    unit->engine = this;
    unit->id = static_cast<UnitId>(&unit - units.data());
  }
  // Slots of sharded units are memory that ranks share; a unit that is whole on every rank has its own then.
  const bool sharded =
      std::any_of(units.begin(), units.end(), [](const auto& unit) { return unit->layout.ranks > 1; });
  executor_.share(sharded && !options.gather_codec ? &mesh.row : nullptr);
  for (const auto& unit : units) unit->outside = sharded && unit->layout.ranks == 1;
  for (UnitParam* param : params) watch(*param);
  executor_.reserve(Executor::first_estimate(units, options.limit_all_gathers));
  note_memory();
}

// Hooks outlive the model where the module does; then they do nothing.
void Engine::watch(UnitParam& param) {
  if (!param.tensor.requires_grad()) return;  // frozen since: it is watched when it is thawed
  if (!std::exchange(param.hooked, true)) {
    const std::weak_ptr<Unit> alive = param.unit->shared_from_this();
    param.tensor.register_hook([alive, p = &param](const at::Tensor&) {
      if (const auto unit = alive.lock()) unit->engine->before_accumulate(*p);
    });
  }
  watch_accumulator(param);
}

// Giving a parameter other memory may make autograd take another accumulator for it.
void Engine::watch_accumulator(UnitParam& param) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(param.tensor);
  if (accumulator == param.accumulator) return;
  param.accumulator = accumulator;
  using torch::autograd::variable_list;
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [alive = std::weak_ptr<Unit>(param.unit->shared_from_this()), p = &param](const variable_list& outputs,
                                                                                const variable_list&) {
        if (const auto unit = alive.lock()) unit->engine->after_accumulate(*p);
        return outputs;
      }));
}

void Engine::enter(const std::vector<at::Tensor>& arguments) {
  if (depth_++ > 0 || graph_task() != -1) return;
  try {
    TORCH_CHECK(state_ != TrainingState::summon_full_params,
                "fsdp: the model was called inside full_params(); end that scope first");
    end_failed_call();
    check_module();
    check_scopes();
    drop_failed_task();
    follow_requires_grad();
    if (at::GradMode::is_enabled() && std::exchange(first_batch_, false)) warn_of_equal_batches(arguments);
    notice_writes();
    begin_cycle(at::GradMode::is_enabled() ? Mode::train : Mode::eval);
    executor_.keep_parts(mode_ == Mode::train && !aside_);
    if (mode && mode_ == Mode::train && !aside_) {
      gradients_.at_forward();
      mode->before_forward();
    }
    state_ = TrainingState::forward_backward;
  } catch (...) {
    --depth_;
    fail(std::current_exception());
    throw;
  }
}

void Engine::leave() {
  const bool failed = std::exchange(call_failed_, false);
  if (--depth_ > 0 || graph_task() != -1) return;
  if (failed) return leave_failed();
  if (mode_ == Mode::train && !aside_) return;
  aside_ = false;
  state_ = mode_ == Mode::eval ? TrainingState::idle : state_;
  executor_.keep_parts(false);
  executor_.release_all();
  end_readings();
}

// An exception leaves a call of the model. Its owner gets it now: what would wait for other ranks, which may
// compute for a while yet, is done when the model is used again. Where it is not, this rank leaves the group,
// and the others are told why.
void Engine::fail_call(const std::exception& error) {
  call_failed_ = true;
  const bool inner = depth_ > 1 || graph_task() != -1;  // the call around it may catch this
  if (inner || dynamic_cast<const CommError*>(&error) != nullptr) return;
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  mesh.leaving(std::string("its call of the model threw: ") +
               (known != nullptr ? known->what_without_backtrace() : error.what()));
}

void Engine::leave_failed() {
  schedule_.spoil();
  aside_ = false;
  state_ = TrainingState::idle;
  owes_end_ = true;
  executor_.keep_parts(false);
  executor_.release_gathered();
}

void Engine::end_failed_call() {
  if (!std::exchange(owes_end_, false)) return;
  mesh.leaving("");
  executor_.release_all();
  end_readings();
}

void Engine::begin_cycle(Mode mode) {
  const bool waiting = in_cycle_ && mode_ == Mode::train && !backward_seen_ && schedule_.current() != nullptr;
  if (mode == Mode::eval && waiting) {
    schedule_.spoil();
    aside_ = true;
    return;
  }
  if (mode == Mode::train && waiting && !schedule_.spoilt()) return;
  end_cycle();
  mode_ = mode;
  schedule_.begin(plans_.likely(kind()));
  in_cycle_ = true;
  backward_seen_ = false;
  synced_ = true;
}

void Engine::end_cycle() {
  if (!std::exchange(in_cycle_, false)) return;
  executor_.keep_parts(false);
  executor_.release_all();
  drop_parts();
  if (mode_ == Mode::train && !(backward_seen_ && synced_)) return;
  if (schedule_.worth_planning())
    adopt_plan();
  else if (schedule_.at_end())
    plans_.followed(kind(), schedule_.plan());
}

void Engine::adopt_plan() {
  std::vector<UnitNeed> needs;
  std::vector<int64_t> buffers;
  for (const auto& unit : units) {
    needs.push_back({.slot_bytes = unit->arena_bytes(), .keep = unit->keep});
    buffers.push_back(unit->layout.ranks > 1 ? unit->buffer_bytes() : 0);
  }
  schedule_.leave_plan();
  plans_.add(kind(), schedule_, needs, buffers, {.max_slots = options.limit_all_gathers});
  // The first plan of a training says how much the slots need, which is less than was taken at first.
  const bool first = mode_ == Mode::train && plans_.trainings() == 1;
  if (first || plans_.arena_bytes() > executor_.arena_bytes()) executor_.reserve(plans_.arena_bytes());
  if (!gradients_.alone()) gradients_.reserve(plans_.buffer_bytes());
  if (mode_ == Mode::train)
    for (const auto& unit : units) unit->read_backward = plans_.has(kind(), {unit->id, Phase::backward});
  trim_host_pool();  // what the recorded cycle needed besides is not needed again
  note_memory();
}

bool Engine::may_read() const { return depth_ > 0 || graph_task() != -1; }

void Engine::use(Unit& unit) {
  const Phase phase = graph_task() == -1 ? Phase::forward : Phase::backward;
  executor_.enter_phase(phase);
  if (unit.stale() && unit.state != UnitState::sharded) executor_.renew(unit);
  if (aside_) return executor_.demand(unit);
  if (phase == Phase::backward) enter_task();
  unit.last_read = phase;
  // Whole on every rank: ranks may differ in whether they read it, so it is no part of what they do alike.
  if (unit.outside) return executor_.demand(unit);
  const Access access{unit.id, phase};
  if (schedule_.current() != nullptr && *schedule_.current() == access) {
    return unit.state == UnitState::gathered ? executor_.read(unit) : executor_.demand(unit);
  }
  const Access* expected = schedule_.expected();
  const PlannedRun* run = schedule_.advance(access);
  if (run == nullptr && expected != nullptr)
    executor_.remark("'" + unit.name + "' came where '" + units[static_cast<size_t>(expected->unit)]->name +
                     "' was planned");
  if (schedule_.went_over()) gradients_.leave_plan();
  if (phase == Phase::backward) gradients_.at_boundary();
  if (run != nullptr &&
      (schedule_.went_over() ? executor_.change_over(schedule_.expected_residents(), unit, units)
                             : executor_.follow(run->before, units)))
    return executor_.read(unit);
  schedule_.leave_plan();
  executor_.demand(unit);
  if (expected != nullptr) mesh.row.share_order();
  note_memory();
}

void Engine::fail(std::exception_ptr error) { last_error_ = std::move(error); }

// Autograd drops the callback of a backward that threw without calling it. It may do so a moment after the
// error has reached its owner, on a thread of its own: outside of a backward no task runs, whoever holds it.
void Engine::drop_failed_task() {
  const bool inside = graph_task() != -1;
  if (task_ == -1 || (inside && !task_alive_.expired())) return;
  task_ = -1;
  captured_ = 0;
  gradients_.abandon();
  schedule_.spoil();
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
  state_ = TrainingState::forward_backward;
  notice_writes();
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
    finish_task();
  } catch (...) {
    fail(std::current_exception());
    schedule_.spoil();
    try {
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
  mesh.check_order(/*now=*/!schedule_.following());
  gradients_.at_task_end();
  note_memory();
  if (gradients_.sync)
    for (const auto& check : after_backward) check(*this);
  if (schedule_.following() && !schedule_.at_end()) return;
  executor_.release_all();
  drop_parts();
  end_readings();
}

// A barrier, where claiming every unit would do: ranks that came here by different ways are told so.
void Engine::end_readings() {
  if (std::none_of(units.begin(), units.end(), [](const auto& unit) { return unit->lent; })) return;
  mesh.row.barrier("shards are not read");
  for (const auto& unit : units) unit->lent = unit->lent && unit->state != UnitState::sharded;
}

// Everything is given back before anything is waited for: ranks may write to their units in different orders.
void Engine::before_write(Unit& unit) {
  const std::lock_guard lock(mutex);
  try {
    const Quiet quiet;
    if (unit.lent) {
      executor_.release_all();
      for (const auto& one : units) one->claim_shards();
    }
    check_write(unit);
    if (unit.pins == 0) executor_.release(unit);  // the next reader gathers what is written now
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  unit.note_write();
}

void Engine::check_write(const Unit& unit) const {
  TORCH_CHECK(!unit.lent, "fsdp: the parameters of unit '", unit.name,
              "' are written while this operator, one around it or a use() scope reads them; other ranks may "
              "read them too. Write outside of it, or clone() what is read.");
}

void Engine::drop_parts() {
  for (const auto& unit : units) executor_.drop_part(*unit);
}

void Engine::before_accumulate(UnitParam& param) {
  TORCH_CHECK(
      state_ != TrainingState::summon_full_params,
      "fsdp: a backward inside full_params(): gradients of whole parameters are not sharded. End that "
      "scope first, and call the model instead of the module.");
  enter_task();
  ++captured_;
  param.tensor.mutable_grad() = at::Tensor();
}

void Engine::after_accumulate(UnitParam& param) {
  --captured_;
  try {
    gradients_.arrived(param);
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

// The first reader after an optimizer's step must find new values, and a backward that began before it must
// not go on with old ones.
void Engine::notice_writes() {
  for (const auto& unit : units) {
    if (!unit->stale()) continue;
    if (mode) mode->check_write();
    if (unit->pins == 0) executor_.release(*unit);
    executor_.drop_part(*unit);
    unit->note_written();
  }
}

void Engine::check_module() const {
  for (const UnitParam* param : params) {
    check_parameter(*param);
    if (param->slice.grad().defined() && param->arrived && !param->tensor.grad().defined()) {
      TORCH_WARN_ONCE(
          "fsdp: module->zero_grad() does not reach the gradients of a sharded model, which add up; call "
          "model.zero_grad() or optimizer.zero_grad()");
    }
  }
  const auto type = world.device().type();
  if (at::autocast::is_autocast_enabled(type)) {
    TORCH_WARN_ONCE(
        "fsdp: autocast keeps whole low-precision copies of the weights from forward to backward; "
        "use ShardOptions::precision instead, for example fsdp::bf16()");
  }
}

void Engine::forget_gradients() {
  gradients_.drop();
  if (mode) mode->restart(units);
}

// Parameters may be frozen and thawed between steps. A region that was frozen gets gradient memory when one
// of its parameters is thawed, and keeps it.
void Engine::follow_requires_grad() {
  bool changed = false, grown = false;
  for (UnitParam* param : params) {
    const bool wanted = param->tensor.requires_grad();
    if (wanted == param->requires_grad) continue;
    changed = true;
    grown = grown || (wanted && !param->region().layout.trainable);
    param->requires_grad = wanted;
    param->slice.set_requires_grad(wanted);
    if (!wanted) param->slice.mutable_grad() = at::Tensor();
    param->region().layout.trainable = param->region().layout.trainable || wanted;
    watch(*param);
  }
  if (!changed) return;
  end_cycle();
  if (grown) plans_.clear();  // buffers are larger now
  trained_.clear();
  for (const UnitParam* param : params) trained_.push_back(param->requires_grad);
}

// A pinned unit would not see what the optimizer wrote.
void Engine::check_scopes() const {
  for (const auto& unit : units)
    TORCH_CHECK(unit->pins == 0, "fsdp: a use() scope of unit '", unit->name,
                "' outlives the call of the model in which it was made; let it end there");
}

void Engine::warn_of_equal_batches(const std::vector<at::Tensor>& arguments) {
  if (mesh.all.size() == 1 || arguments.empty()) return;
  const Quiet quiet;
  if (batches_are_equal(mesh.all, world.device(), arguments) && world.rank() == 0)
    log_warn("all " + std::to_string(mesh.all.size()) +
             " ranks were given the same first batch: they will compute the same gradients. Give each rank "
             "its own data, for example by fsdp::Sampler.");
}

void Engine::stand_aside() {
  TORCH_CHECK(state_ != TrainingState::summon_full_params && depth_ == 0,
              "fsdp: a captured step inside full_params() or a call of the model");
  end_failed_call();
  drop_failed_task();
  check_module();
  end_cycle();
  executor_.forget_streams();
  gradients_.forget_streams();
}

void Engine::make_accumulators_anew() {
  for (UnitParam* param : params) {
    param->accumulator.reset();
    watch(*param);
  }
}

std::vector<at::Tensor> Engine::step_memory() const {
  std::vector<at::Tensor> memory{executor_.arena()};
  for (const auto& unit : units)
    for (const auto& region : unit->regions) memory.push_back(region->shard);
  return memory;
}

void Engine::keep_back(bool on) {
  TORCH_CHECK(
      !on || !mode,
      "fsdp: reproducible: no_sync() would change the order of sums; call backward() for each microbatch");
  kept_back_ += on ? 1 : -1;
  gradients_.sync = kept_back_ == 0;
}

void Engine::absorb(Engine& inner) {
  inner.executor_.keep_parts(false);
  inner.executor_.release_all();
  for (const auto& unit : inner.units) inner.executor_.drop_part(*unit);
  inner.executor_.reserve(0);
  kept_back_ += inner.kept_back_;
  gradients_.sync = kept_back_ == 0;
  for (auto& unit : inner.units) {
    units.push_back(std::move(unit));
  }
  mesh.adopted.push_back(inner.mesh.row);
  mesh.adopted.insert(mesh.adopted.end(), inner.mesh.adopted.begin(), inner.mesh.adopted.end());
  inner.units.clear();
  inner.params.clear();
}

}  // namespace fsdp::detail
