// A sharded model at run time: what the observer, autograd's hooks and the public handle call.
#pragma once

#include <fsdp/sharded.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/known_plans.h"
#include "plan/schedule.h"
#include "runtime/executor.h"
#include "runtime/full_gradients.h"
#include "runtime/gradients.h"
#include "runtime/ledger.h"
#include "runtime/memory_watch.h"
#include "runtime/model.h"
#include "runtime/unit_phase.h"

namespace fsdp::detail {

class Engine final : public Model, public std::enable_shared_from_this<Engine> {
 public:
  // `mode`: null, or what makes a step of several backwards.
  Engine(const World& world, torch::nn::Module& module, const ShardOptions& options, Mesh mesh,
         std::unique_ptr<StepMode> mode);
  ~Engine() override;

  // --- from the public handle
  void enter(const std::vector<at::Tensor>& arguments);
  void leave();
  // The call that is about to be left throws `error`. One of memory is thrown from here, with a report.
  void fail_call(const std::exception& error);
  // Scopes are numbered; one may end before another that began later.
  int open_full_params(const FullParamsOptions& options);
  void close_full_params(int scope);

  // Gathers and releases units by hand. `path`: of a module, of whose parameters a unit has some.
  void unshard(const std::string& path);
  void reshard(const std::string& path);

  void check_between_steps(const char* doing) override;

  // --- from captured steps, see Note [Captured steps]
  bool in_no_sync() const override;
  bool in_keep_gathered() const override { return keep_scopes_ > 0; }
  // Nothing of this model is gathered, no cycle goes on, and the current stream is ordered behind its work.
  void quiesce();
  // Gradients are accumulated on the current stream from now on.
  void make_accumulators_anew();
  // What a step works in besides what it allocates.
  std::vector<at::Tensor> step_memory() const;

  // --- from the observer
  // Inside a call of the model, or a backward.
  bool may_read() const;
  // An operator is about to read `unit`.
  void use(Unit& unit);
  // An operator is about to read `unit`, which is there since another one reads it: on another stream, maybe.
  void use_again(Unit& unit) { executor_.read(unit); }
  // An operator is about to write to a shard of `unit`.
  void before_write(Unit& unit);
  // Throws where `unit` may be read by others: an operator that is about to write to it reads it as well.
  void check_write(const Unit& unit) const;
  // An operator met `error`; it is kept for the caller.
  void fail(std::exception_ptr error);

  // --- from autograd's hooks
  void before_accumulate(UnitParam& param);
  void after_accumulate(UnitParam& param);

  // Called after every reduced backward, by all ranks.
  std::vector<std::function<void(Engine&)>> after_backward;
  std::shared_ptr<Engine> merged_into;  // another model has taken over the units

  // Called once, when all units are there.
  void start();
  // Takes over the units of a model that is part of this one.
  void absorb(Engine& inner);
  // Gradients stay on this rank, or in its row, until it was called with false as often as with true.
  // `key`: of the scope.
  void begin_no_sync(const void* key, const NoSyncOptions& scope);
  void end_no_sync(const void* key, const NoSyncOptions& scope);
  // Units stay gathered after a cycle until it was called with false as often as with true.
  void keep_gathered(bool on);
  void forget_gradients();
  // See Note [Told gradients].
  void set_on_gradient(std::function<void(const std::string&, at::Tensor&)> done);

  TrainingState training_state() const { return state_; }
  UnitPhases& phases() { return phases_; }
  std::exception_ptr last_error() const { return last_error_; }
  Ledger ledger() const { return take_ledger(*this, executor_, gradients_); }
  MemoryStats memory_stats(int64_t optimizer_bytes) const override;
  void reset_peak_memory() { memory_.reset(ledger().total()); }
  MemoryWatch& memory() { return memory_; }

 private:
  enum class Mode : uint8_t { train, eval };
  // Evaluations inside a cycle that is worth a plan: after a forward nobody goes back through, many may come.
  static constexpr int kMostEvaluations = 16;
  // A full_params() that lives: the units it made whole, and the memory of their regions, in order.
  struct FullScope {
    FullParamsOptions options;
    std::vector<Unit*> units;
    std::vector<at::Tensor> whole;
    std::unique_ptr<FullGradients> gradients;  // null: it has none
  };
  std::vector<Unit*> units_under(const std::string& path, const char* doing, bool recurse = true) const;
  void go_on_to(Unit& unit, Access access);
  bool obey(const std::vector<Instruction>& steps, bool ready);
  bool change_over();
  void release_as_planned();
  void leave_failed();
  void wait_for_host() const;
  void end_failed_call();
  void begin_cycle(Mode mode);
  void end_cycle();
  CycleKind kind() const;
  void follow_scopes(bool between_tasks);
  void release_passing();
  void tell_gradients(bool backward_ended);
  void adopt_plan();
  void reserve_slots(int64_t bytes);
  void reserve_planned();
  void enter_task();
  void end_task(int task);
  void finish_task();
  void give_up(const std::exception_ptr& error);
  void drop_failed_task();
  void drop_saved();
  void end_readings();
  void check_module() const;
  void follow_requires_grad();
  bool is_whole(const Unit& unit) const;
  void make_whole(Unit& unit, FullScope& scope);
  void give_up(FullScope& scope);
  void take_apart(Unit& unit, std::span<const at::Tensor> whole, const FullParamsOptions& how);
  void check_scopes() const;
  void notice_writes();
  void watch(UnitParam& param);
  void watch_accumulator(UnitParam& param);
  void warn_of_equal_batches(const std::vector<at::Tensor>& arguments);
  void note_memory() { memory_.note(ledger().total()); }
  void sample_memory(const std::string& moment);

  Schedule schedule_;
  Executor executor_;
  Gradients gradients_;
  UnitPhases phases_;
  KnownPlans plans_;
  std::vector<bool> trained_;  // which parameters are, where some were frozen or thawed
  Mode mode_ = Mode::train;
  bool in_cycle_ = false;
  bool backward_seen_ = false;
  bool synced_ = true;        // every backward of the cycle was reduced
  int no_sync_scopes_ = 0;    // no_sync() scopes of all units that live
  int rows_only_scopes_ = 0;  // and of those that reduce in the row
  std::map<const void*, std::vector<std::weak_ptr<Unit>>> no_sync_units_;  // of scopes of a module
  std::vector<bool> held_;  // units that no_sync() keeps back; empty: none
  std::function<void(const std::string&, at::Tensor&)> on_gradient_;
  bool telling_ = false;            // it is being called
  int keep_scopes_ = 0;             // keep_gathered() scopes that live
  bool keeps_ = false;              // the cycle in progress, or the last one, does
  int depth_ = 0;                   // calls of the model in progress
  int task_ = -1;                   // the backward in progress
  std::weak_ptr<bool> task_alive_;  // autograd has it still
  bool inputs_only_ = false;        // it asks for no parameter's gradient
  int evaluations_ = 0;             // between the forward and the backward of the cycle
  bool call_failed_ = false;        // an exception leaves the call in progress
  bool owes_end_ = false;           // a call failed, and what ends one with the other ranks was not done
  bool gave_up_ = false;            // a backward failed, and ranks may still be told why
  bool first_batch_ = true;
  TrainingState state_ = TrainingState::idle;
  std::exception_ptr last_error_;
  std::map<int, FullScope> full_scopes_;
  int next_scope_ = 0;
  int64_t captured_ = 0;  // gradients seen by the hook before AccumulateGrad and not after it
  MemoryWatch memory_;
};

// The model that has the units now.
Engine& current(const std::shared_ptr<Engine>& engine);

}  // namespace fsdp::detail
