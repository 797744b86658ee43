// Gradients: takes gradients from autograd into flat buffers, and reduces them as instructions say.
#pragma once

#include <memory>
#include <vector>

#include "plan/known_plans.h"
#include "plan/on_demand.h"
#include "plan/schedule.h"
#include "runtime/gradient_shards.h"
#include "runtime/mesh.h"
#include "runtime/policy.h"
#include "runtime/step_mode.h"
#include "runtime/unit.h"

namespace fsdp::detail {

class Gradients {
 public:
  using Units = std::vector<std::shared_ptr<Unit>>;

  // `mode`: null, or the mode that adds up several
  // backwards. `check_finite`: every gradient is checked.
  Gradients(Mesh& mesh, StepMode* mode, bool check_finite, c10::Device device, Schedule& schedule,
            const Units& units, HostSide* host);

  // Called when all units exist.
  void start();
  // True if nothing is reduced: gradients stay where autograd put them.
  bool alone() const { return alone_; }

  // Memory for unreduced gradients, at planned offsets. Collective.
  void reserve(int64_t bytes);
  void end_cycle();
  // The current stream has waited for all streams that took part so far.
  void forget_streams() { writers_.clear(); }
  int64_t buffer_bytes() const;

  // A training forward begins.
  void at_forward() const { shards_.let_go(units_); }
  // A parameter's gradient is complete in tensor.grad().
  void arrived(UnitParam& param);
  // The model goes on to another unit: casts the gradients that wait for it.
  void go_on();
  // Carries out one instruction. With `at_end` of a backward, settled gradients are shown together later,
  // when nothing else can arrive.
  void obey(const Instruction& step, bool at_end = false);
  // The cycle changes to another plan, which has the buffers `open`.
  void change_over(const std::vector<Place>& open);
  // The part of go_on() that a plan would have. `known`: the actions of earlier cycles at this boundary, or
  // null: ranks ask each other.
  void go_on_unplanned(const Boundary* known);
  // A backward ends: reduces all gradients that arrived. `planned`: the planned instructions, or null.
  void at_task_end(const Moment* planned);
  // Drops the gradients that no_sync() kept back.
  void drop();
  // A backward failed: drops the gradients that arrived.
  void abandon();

  // no_sync({.rows_only = true}) keeps sums in the row of the mesh.
  bool held_in_row() const { return shards_.held_in_row; }
  void hold_in_row(bool on) { shards_.held_in_row = on; }
  void begin_task(bool graph_stays) { shards_.graph_stays = graph_stays; }
  // A boundary of a backward: see Note [Told gradients].
  void show_complete();

  bool sync = true;    // false: gradients stay on this rank
  bool tells = false;  // on_gradient() is set

 private:
  void take_local(UnitParam& param, const at::Tensor& gradient);
  void copy_waiting();
  void open(Unit& unit);
  void open_regions(Unit& unit);
  void take_planned_place(Unit& unit);
  void move_to_plan(Unit& unit);
  bool in_arena(const UnitRegion& region) const;
  void leave_plan();
  void clear_padding(Unit& unit);
  void obey_and_record(const std::vector<Instruction>& steps);
  std::vector<InFlight> in_flight() const;
  void reduce(const Instruction& step);
  std::vector<bool> used_now(const Instruction& planned, const Unit& unit);
  std::vector<GradientCounts> count_ranks();
  std::vector<GradientCounts> count_as_known(const Boundary& known) const;
  std::vector<int64_t> count_left(std::vector<int64_t>& used);
  void reduce_what_is_left(std::vector<int64_t>& used);
  void reduce_at_end(const Moment* planned);
  bool anyone_surprised(std::vector<int64_t>& used);
  std::vector<int64_t> used_here(bool surprised);
  void show(const std::vector<int64_t>& used);
  void show_now(UnitParam& param) const;
  void show_settled(Unit& unit);
  template <class Fn>
  void for_each_param(Fn fn) {
    for (const auto& unit : units_)
      for (const auto& param : unit->params) fn(*param);
  }
  at::Tensor own_buffer(const Unit& unit, UnitRegion& region);
  std::vector<int64_t> sum_over_ranks(const std::vector<int64_t>& values, const char* label);
  at::Tensor on_device(const std::vector<int64_t>& values) const;
  static std::vector<int64_t> on_host(const at::Tensor& values);

  void check_finite(const UnitParam& param, const at::Tensor& gradient);
  void throw_not_finite();
  void give_to_mode(const std::vector<int64_t>& used);

  Mesh& mesh_;
  StepMode* mode_;
  bool check_;
  bool alone_ = false;
  c10::Device device_;
  Policy policy_;
  Schedule& schedule_;
  const Units& units_;
  at::Tensor arena_;  // [bytes] gradient buffers at planned offsets
  GradientShards shards_;
  StreamSet writers_;                            // streams on which gradients arrived
  std::vector<at::Tensor> copy_to_, copy_from_;  // gradients of one unit to be cast to another type
  const UnitParam* not_finite_ = nullptr;        // the first whose gradient is infinite or NaN on this rank
  bool surprised_ = false;                       // a gradient arrived that the plan did not expect
};

}  // namespace fsdp::detail
