// Engine: a sharded model at run time, called by the observer, autograd's hooks and the public handle.
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
#include "runtime/call_activity.h"
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
  // `mode`: null, or the mode that makes a step of several backwards.
  Engine(const World& world, torch::nn::Module& module, const ShardOptions& options, Mesh mesh,
         std::unique_ptr<StepMode> mode);
  ~Engine() override;

  // --- from the public handle
  void enter(const std::vector<at::Tensor>& arguments);
  void leave();
  // The call about to end throws `error`. An out-of-memory error is thrown from here, with a report.
  void fail_call(std::exception& error);
  // Scopes are numbered; one may end before another that began later.
  int open_full_params(const FullParamsOptions& options);
  void close_full_params(int scope);

  // Gathers and releases units by hand: those that hold parameters of the module at `path`.
  void unshard(const std::string& path);
  void reshard(const std::string& path);

  void check_between_steps(const char* doing) override;

  // --- from captured steps, see Note [Captured steps]
  bool in_no_sync() const override;
  bool in_keep_gathered() const override { return !keep_scopes_.empty(); }
  // Waits until nothing is gathered and no cycle goes on; orders the current stream behind the model's work.
  void quiesce();
  // From now on gradients are accumulated on the current stream.
  void make_accumulators_anew();
  // The memory that a step uses without allocating it.
  std::vector<at::Tensor> step_memory() const;

  // --- from the observer
  // True inside a call of the model, or a backward.
  bool may_read() const;
  // An operator is about to read `unit`.
  void use(Unit& unit);
  // An operator is about to read `unit`, gathered because another one reads it, maybe on another stream.
  void use_again(Unit& unit) { executor_.read(unit); }
  // An operator is about to write to a shard of `unit`.
  void before_write(Unit& unit);
  // Throws if other ranks may read `unit`: an operator that is about to write to it reads it as well.
  void check_write(const Unit& unit) const;
  // An operator threw `error`; it is kept for last_error().
  void fail(std::exception_ptr error);

  // --- from autograd's hooks
  void before_accumulate(UnitParam& param);
  void after_accumulate(UnitParam& param);

  // Called after every reduced backward, by all ranks.
  std::vector<std::function<void(Engine&)>> after_backward;
  std::shared_ptr<Engine> merged_into;  // another model has taken over the units

  // Called once, when all units exist.
  void start();
  // Takes over the units of a model that is part of this one.
  void absorb(Engine& inner);
  // Keeps gradients on this rank, or in its row, until end_no_sync() of the returned scope.
  int begin_no_sync(const NoSyncOptions& options);
  void end_no_sync(int scope);
  // Keeps units gathered after a cycle until end_keep_gathered() of the returned scope.
  int begin_keep_gathered(const KeepGatheredOptions& options);
  void end_keep_gathered(int scope);
  void synchronize_gradients();
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
  // Limit of evaluations in a cycle worth a plan: after a forward without a backward, many may follow.
  static constexpr int kMostEvaluations = 16;
  // An open full_params(): the units it made whole, and the memory of their regions, in order.
  struct FullScope {
    FullParamsOptions options;
    std::vector<Unit*> units;
    std::vector<at::Tensor> whole;
    std::unique_ptr<FullGradients> gradients;  // null: it has none
  };
  // An open no_sync() or keep_gathered(). Its units may get other names meanwhile, if an outer model takes
  // them over.
  struct UnitScope {
    bool whole = true;  // for all units
    bool rows_only = false;
    std::vector<std::weak_ptr<Unit>> units = {};

    bool names(const Unit& unit) const;
  };
  UnitScope unit_scope(const std::string& module, const char* doing) const;
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
  bool holds_all() const;
  bool holds_rows() const;
  std::vector<bool> kept_units() const;
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
  std::vector<bool> trained_;  // the trained parameters, if some were frozen or unfrozen
  Mode mode_ = Mode::train;
  bool in_cycle_ = false;
  bool backward_seen_ = false;
  bool synced_ = true;                       // every backward of the cycle was reduced
  std::map<int, UnitScope> no_sync_scopes_;  // open scopes, by number
  std::map<int, UnitScope> keep_scopes_;     // the same for keep_gathered()
  std::vector<bool> held_;                   // units that no_sync() keeps back; empty: none
  std::function<void(const std::string&, at::Tensor&)> on_gradient_;
  bool telling_ = false;            // on_gradient_ is being called
  std::vector<bool> kept_;          // units that stay gathered after the current cycle, or the last one
  int depth_ = 0;                   // calls of the model in progress
  int task_ = -1;                   // the backward in progress
  std::weak_ptr<bool> task_alive_;  // autograd still has it
  bool inputs_only_ = false;        // it asks for no parameter's gradient
  int evaluations_ = 0;             // between the forward and the backward of the cycle
  bool call_failed_ = false;        // an exception leaves the current call
  bool owes_end_ = false;           // a call failed, and its end with the other ranks was not done
  bool gave_up_ = false;            // a backward failed, and other ranks may still see the reason
  bool first_batch_ = true;
  TrainingState state_ = TrainingState::idle;
  std::exception_ptr last_error_;
  std::map<int, FullScope> full_scopes_;
  int next_scope_ = 0;
  int64_t captured_ = 0;  // gradients seen by the hook before AccumulateGrad and not after it
  MemoryWatch memory_;
  CallActivity calls_;
};

// The model that has the units now.
Engine& current(const std::shared_ptr<Engine>& engine);

}  // namespace fsdp::detail
