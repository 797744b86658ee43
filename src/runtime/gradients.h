// Takes gradients from autograd into flat buffers, and decides when each buffer is reduced.
#pragma once

#include <memory>
#include <vector>

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

  // `mode`: null, or who puts sums of several backwards together. `check_finite`: every gradient is looked
  // at.
  Gradients(Mesh& mesh, StepMode* mode, bool check_finite, c10::Device device, Schedule& schedule,
            const Units& units);

  // Nothing is reduced: gradients stay where autograd put them.
  bool alone() const { return mesh_.all.size() == 1 && mode_ == nullptr; }

  // Memory for gradients on their way, as planned. Collective.
  void reserve(int64_t bytes);
  // The current stream has waited for all that took part so far.
  void forget_streams() { writers_.clear(); }
  int64_t buffer_bytes() const;

  // A forward of the training begins.
  void at_forward() const { shards_.let_go(units_); }
  // A parameter's gradient is complete in tensor.grad().
  void arrived(UnitParam& param);
  // Without a plan every rank's buffers are its own memory, also those it opened by the plan it has left.
  void leave_plan();
  // The model goes on to another unit.
  void at_boundary();
  // A backward ends: everything that arrived is reduced and in the gradient shards.
  void at_task_end();
  // Forgets what was kept back.
  void drop();
  // A backward failed: what arrived is dropped.
  void abandon();

  bool sync = true;  // false: gradients stay on this rank

 private:
  void take_local(UnitParam& param, const at::Tensor& gradient);
  void copy_waiting();
  void open(Unit& unit);
  void open(Unit& unit, const Reduction* planned);
  void open_regions(Unit& unit);
  void take_planned_place(Unit& unit, const Reduction& planned);
  void move_to_plan(Unit& unit, const Reduction& planned);
  bool in_arena(const UnitRegion& region) const;
  void clear_padding(Unit& unit);
  void reduce(Unit& unit, std::vector<bool> used, bool task_end);
  void reduce_planned(bool task_end);
  void reduce_complete();
  void reduce_rest();
  void reduce_at_end();
  bool anyone_surprised(std::vector<int64_t>& used);
  std::vector<int64_t> used_here(bool surprised);
  void show(const std::vector<int64_t>& used);
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
  void end_round(const std::vector<int64_t>& used);

  Mesh& mesh_;
  StepMode* mode_;
  bool check_;
  c10::Device device_;
  Policy policy_;
  Schedule& schedule_;
  const Units& units_;
  at::Tensor arena_;  // [bytes] gradient buffers at planned offsets
  GradientShards shards_;
  StreamSet writers_;                            // on which gradients arrived
  std::vector<at::Tensor> copy_to_, copy_from_;  // gradients of one unit on their way into another type
  const UnitParam* not_finite_ = nullptr;        // the first whose gradient is infinite or NaN here
  bool surprised_ = false;                       // a gradient came that the plan did not expect
};

}  // namespace fsdp::detail
