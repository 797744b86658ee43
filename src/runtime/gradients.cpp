#include "runtime/gradients.h"

#include <ATen/ops/_foreach_copy.h>

#include <algorithm>

#include "base/assert.h"
#include "watch/quiet.h"

namespace fsdp::detail {

Gradients::Gradients(Mesh& mesh, StepMode* mode, bool check_finite, c10::Device device, Schedule& schedule,
                     const Units& units)
    : mesh_(mesh),
      mode_(mode),
      check_(check_finite),
      device_(device),
      policy_(policy_of(device)),
      schedule_(schedule),
      units_(units),
      shards_(mesh, mode, policy_),
      writers_(device) {}

void Gradients::arrived(UnitParam& param) {
  const Quiet quiet;
  Unit& unit = *param.unit;
  at::Tensor gradient = std::exchange(param.tensor.mutable_grad(), param.trap);
  if (!gradient.defined()) return;
  param.arrived = true;
  writers_.join();
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  if (check_) check_finite(param, gradient);
  if (alone()) return take_local(param, gradient);

  if (!unit.open) open(unit);
  if (!param.region().buffer.defined()) open_regions(unit);
  param.fresh = param.used = true;
  const at::Tensor place = param.view_of(param.region().buffer);
  if (std::exchange(param.fired, true))
    place.add_(gradient);
  else
    place.copy_(gradient);
}

// Alone, a gradient stays where autograd put it unless it needs another type or order.
void Gradients::take_local(UnitParam& param, const at::Tensor& gradient) {
  UnitRegion& region = param.region();
  if (gradient.scalar_type() == region.gradient_type &&
      gradient.strides() == at::IntArrayRef(param.strides)) {
    at::Tensor& total = param.slice.mutable_grad();
    const at::Tensor flat = raw_view(gradient, 0, {gradient.numel()}, {1});
    if (total.defined()) {
      copy_waiting();
      total.add_(flat);
    } else {
      total = flat;
    }
    return;
  }
  shards_.make(region);
  param.reduced = true;
  const at::Tensor place = param.view_of(region.gradient);
  if (std::exchange(param.fired, true) || region.shown) {
    copy_waiting();
    place.add_(gradient);
  } else {
    copy_to_.push_back(place);
    copy_from_.push_back(gradient);
  }
}

// One kernel for many small copies, where a device has kernels to save.
void Gradients::copy_waiting() {
  if (copy_to_.empty()) return;
  writers_.wait_for_others();
  at::_foreach_copy_(copy_to_, copy_from_);
  writers_.hold_others();
  copy_to_.clear();
  copy_from_.clear();
}

void Gradients::at_boundary() {
  const Quiet quiet;
  copy_waiting();
  if (alone() || !sync) return;
  shards_.finish_before(schedule_.boundary());
  if (schedule_.following()) return reduce_planned(false);
  leave_plan();
  reduce_complete();
}

void Gradients::at_task_end() {
  const Quiet quiet;
  copy_waiting();
  for_each_param([](UnitParam& param) { param.fresh = false; });
  if (check_) throw_not_finite();
  if (alone())
    show({});
  else if (sync)
    reduce_at_end();
  if (alone() || sync) shards_.let_go(units_);
  schedule_.end_task();
}

void Gradients::reduce_at_end() {
  std::vector<int64_t> used;
  if (schedule_.following()) {
    reduce_planned(true);
    if (anyone_surprised(used)) {
      schedule_.leave_plan();
      leave_plan();
      reduce_rest();
    }
  } else {
    leave_plan();
    if (policy_.asks_ranks_every_step) used = sum_over_ranks(used_here(false), "used parameters");
    reduce_rest();
  }
  shards_.finish_all();
  if (mode_ != nullptr)
    end_round(used);
  else
    show(used);
  for_each_param([](UnitParam& param) { param.used = false; });
}

// `used`: how many ranks used each parameter; empty: the reduces know it.
void Gradients::show(const std::vector<int64_t>& used) {
  size_t next = 0;
  for_each_param([&](UnitParam& param) {
    const bool reduced = std::exchange(param.reduced, false);
    const bool somewhere = used.empty() ? reduced : used[next] > 0;
    ++next;
    if (somewhere && param.gradient_slice.defined()) GradientShards::show(param);
    if (alone()) param.fired = false;
  });
}

void Gradients::reduce_planned(bool task_end) {
  for (const Reduction* one : schedule_.due(task_end)) {
    Unit& unit = *units_[static_cast<size_t>(one->unit)];
    if (unit.open)
      move_to_plan(unit, *one);
    else
      open(unit, one);
    std::vector<bool> used = one->used;
    if (!policy_.asks_ranks_every_step)  // otherwise ranks settle at the end what was used
      for (size_t i = 0; i < unit.params.size(); ++i) used[i] = used[i] || unit.params[i]->fired;
    if (used != one->used) {
      surprised_ = true;
      schedule_.widen(*one, used);
    }
    reduce(unit, std::move(used), task_end);
  }
}

// Units whose gradients are complete on every rank.
void Gradients::reduce_complete() {
  std::vector<int64_t> states;
  for (const auto& unit : units_) {
    states.push_back(unit->open ? 1 : 0);
    states.push_back(unit->open && unit->complete() ? 1 : 0);
  }
  states = sum_over_ranks(states, "complete units");
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    if (states[2 * i] > 0 && !unit.open) {
      open(unit);
      unit.opened = schedule_.boundary() - 1;  // as on the ranks that have a gradient
    }
    if (states[2 * i + 1] == mesh_.all.size()) {
      std::vector<bool> used;
      for (const auto& param : unit.params) used.push_back(param->requires_grad);
      reduce(unit, std::move(used), false);
    }
  }
}

// Whatever some rank has gradients for.
void Gradients::reduce_rest() {
  std::vector<int64_t> fired;
  for (const auto& unit : units_)
    for (const auto& param : unit->params) fired.push_back(param->fired ? 1 : 0);
  fired = sum_over_ranks(fired, "unused parameters");
  size_t next = 0;
  for (const auto& unit : units_) {
    std::vector<bool> used;
    for (size_t i = 0; i < unit->params.size(); ++i) used.push_back(fired[next++] > 0);
    if (std::find(used.begin(), used.end(), true) == used.end()) continue;
    if (!unit->open) open(*unit);
    reduce(*unit, std::move(used), true);
  }
}

void Gradients::reduce(Unit& unit, std::vector<bool> used, bool task_end) {
  writers_.wait_for_others();
  open_regions(unit);
  for (const auto& param : unit.params)
    if (param->region().buffer.defined() && !param->fired) param->view_of(param->region().buffer).zero_();
  if (!schedule_.following())
    schedule_.record({.unit = unit.id,
                      .opened = std::min(unit.opened, schedule_.boundary()),
                      .at = schedule_.boundary(),
                      .task_end = task_end,
                      .used = used});
  shards_.reduce(unit, used, schedule_.boundary());
  for (const auto& param : unit.params) param->fired = param->fresh = false;
  unit.open = false;
  ++unit.reduces;
}

// Slices get their gradients with the last round of a step.
void Gradients::end_round(const std::vector<int64_t>& used) {
  size_t next = 0;
  for_each_param(
      [&](UnitParam& param) { param.touched = param.touched || (!used.empty() && used[next] > 0), ++next; });
  const auto take = [&](UnitRegion& region, const at::Tensor& sum, double scale) {
    shards_.take(region, sum, scale);
  };
  if (!mode_->end_round(units_, take)) return;
  for_each_param([&](UnitParam& param) {
    if (!std::exchange(param.touched, false)) return;
    TORCH_CHECK(!param.slice.grad().defined(), "fsdp: reproducible: parameter '", param.names.front(),
                "' has a gradient of the step before; call zero_grad() after every step");
    param.slice.mutable_grad() = param.gradient_slice;
  });
}

void Gradients::drop() {
  copy_to_.clear();
  copy_from_.clear();
  for (const auto& unit : units_) {
    unit->open = false;
    for (const auto& region : unit->regions) region->buffer = at::Tensor();
  }
  for_each_param([](UnitParam& param) { param.fired = param.fresh = param.used = param.reduced = false; });
}

void Gradients::abandon() {
  const Quiet quiet;
  copy_waiting();
  drop();
  if (mode_ != nullptr) mode_->drop_round();
  surprised_ = false;
  shards_.drop_pending();
  shards_.let_go(units_);
}

}  // namespace fsdp::detail
