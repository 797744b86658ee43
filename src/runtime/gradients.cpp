#include "runtime/gradients.h"

#include <ATen/ops/_foreach_copy.h>

#include <algorithm>

#include "base/assert.h"
#include "watch/quiet.h"

namespace fsdp::detail {

Gradients::Gradients(Mesh& mesh, StepMode* mode, bool check_finite, c10::Device device, Schedule& schedule,
                     const Units& units, HostSide* host)
    : mesh_(mesh),
      mode_(mode),
      check_(check_finite),
      device_(device),
      policy_(policy_of(device)),
      schedule_(schedule),
      units_(units),
      shards_(mesh, mode, policy_, host),
      writers_(device) {}

void Gradients::start() {
  alone_ = mode_ == nullptr;
  for (const auto& unit : units_)
    for (const auto& region : unit->regions) alone_ = alone_ && region->reduce_path->alone();
}

void Gradients::arrived(UnitParam& param) {
  const Quiet quiet;
  Unit& unit = *param.unit;
  at::Tensor gradient = std::exchange(param.tensor.mutable_grad(), param.trap);
  if (!gradient.defined()) return;
  param.gradient.ever = true;
  writers_.join();
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  if (check_) check_finite(param, gradient);
  if (alone()) return take_local(param, gradient);

  if (!unit.gradient.open) open(unit);
  if (!param.region().gradient.buffer.defined()) open_regions(unit);
  param.gradient.used_locally = true;
  const at::Tensor place = param.view_of(param.region().gradient.buffer);
  const bool adds = param.gradient.in_buffer();
  param.gradient.state = ParamGradient::State::fresh;
  if (adds)
    place.add_(gradient);
  else
    place.copy_(gradient);
}

// With one rank a gradient stays where autograd put it, unless it needs another type or order.
void Gradients::take_local(UnitParam& param, const at::Tensor& gradient) {
  UnitRegion& region = param.region();
  param.gradient.used_locally = true;
  if (gradient.scalar_type() == region.gradient_type() &&
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
  param.gradient.used_by_any_rank = true;
  const at::Tensor place = param.view_of(region.gradient.shard);
  const bool adds = param.gradient.in_buffer() || region.gradient.shown;
  param.gradient.state = ParamGradient::State::fresh;
  if (adds) {
    copy_waiting();
    place.add_(gradient);
  } else {
    copy_to_.push_back(place);
    copy_from_.push_back(gradient);
  }
}

// One kernel for many small copies, if the device has kernels.
void Gradients::copy_waiting() {
  if (copy_to_.empty()) return;
  writers_.wait_for_others();
  at::_foreach_copy_(copy_to_, copy_from_);
  writers_.hold_others();
  copy_to_.clear();
  copy_from_.clear();
}

void Gradients::go_on() {
  const Quiet quiet;
  copy_waiting();
}

// Reproducible mode has one order of sums, which an early reduction would change. AdamW::step_in_backward()
// would step with a part of the gradient.
void Gradients::go_on_unplanned(const Boundary* known) {
  if (alone() || !sync) return;
  const Quiet quiet;
  leave_plan();
  obey_and_record(detail::go_on(in_flight()));
  const bool asks = known == nullptr || mode_ != nullptr || shards_.steps_in_backward();
  obey_and_record(
      reduce_complete(asks ? count_ranks() : count_as_known(*known), mesh_.all.size(), in_flight()));
}

// A record must be sound by itself: a sum that settled when the cycle changed to another plan has to settle
// in the record of that plan too. Settling it again does nothing.
std::vector<InFlight> Gradients::in_flight() const {
  std::vector<InFlight> all = shards_.in_flight();
  for (const auto& [id, crossed] : schedule_.unsettled()) {
    if (std::any_of(all.begin(), all.end(), [unit = id](const InFlight& one) { return one.unit == unit; }))
      continue;
    const auto& regions = units_[static_cast<size_t>(id)]->regions;
    const bool crosses = std::any_of(regions.begin(), regions.end(),
                                     [](const auto& region) { return region->reduce_path->crosses(); });
    all.push_back({.unit = id, .across = crosses && !crossed});
  }
  return all;
}

void Gradients::obey_and_record(const std::vector<Instruction>& steps) {
  for (const Instruction& step : steps) {
    obey(step);
    schedule_.record(step);
  }
}

void Gradients::obey(const Instruction& step, bool at_end) {
  if (alone() || !sync) return;
  const Quiet quiet;
  Unit& unit = *units_[static_cast<size_t>(step.unit)];
  switch (step.action) {
    case Action::open:
      unit.gradient.buffer_offset = step.offset;
      break;
    case Action::reduce:
      reduce(step);
      break;
    case Action::reduce_across:
      shards_.reduce_across(unit);
      break;
    case Action::settle:
      shards_.settle(unit, at_end ? nullptr : &schedule_);
      if (!at_end) show_settled(unit);
      break;
    default:
      break;
  }
}

void Gradients::change_over(const std::vector<Place>& open) {
  if (alone() || !sync) return;
  const Quiet quiet;
  for (const Instruction& step : end_backward(shards_.in_flight())) obey(step);
  leave_plan();
  for (const auto& [unit, offset] : open) units_[static_cast<size_t>(unit)]->gradient.buffer_offset = offset;
}

void Gradients::at_task_end(const Moment* planned) {
  const Quiet quiet;
  copy_waiting();
  for_each_param([](UnitParam& param) {
    if (param.gradient.fresh()) param.gradient.state = ParamGradient::State::kept;
  });
  if (check_) throw_not_finite();
  if (alone())
    show({});
  else if (sync)
    reduce_at_end(planned);
  if (alone() || sync) shards_.let_go(units_);
}

void Gradients::reduce_at_end(const Moment* planned) {
  std::vector<int64_t> used;
  bool surprised = false;
  for (size_t i = 0; planned != nullptr && i < planned->steps.size() && !surprised; ++i) {
    if (planned->steps[i].action == Action::agree)
      surprised = anyone_surprised(used);
    else
      obey(planned->steps[i], /*at_end=*/true);
  }
  if (surprised) schedule_.leave_plan_at_agreement();
  if (surprised || planned == nullptr) reduce_what_is_left(used);
  if (!shards_.held_in_row) shards_.reduce_left_in_rows(units_);
  size_t next = 0;
  if (!used.empty() && shards_.steps_in_backward())
    for_each_param([&](UnitParam& param) { param.gradient.used_by_any_rank &= used[next++] > 0; });
  shards_.end_in_host_memory();
  if (mode_ != nullptr)
    give_to_mode(used);
  else
    show(used);
  for_each_param([&](UnitParam& param) {
    const bool waits = param.unit->gradient.held || shards_.stays_in_row(param.region());
    param.gradient.used_locally = param.gradient.used_locally && waits;
  });
}

// Without a plan, all gradients that any rank has are reduced at the end of the backward.
void Gradients::reduce_what_is_left(std::vector<int64_t>& used) {
  leave_plan();
  const std::vector<int64_t> fired = count_left(used);
  std::vector<std::vector<bool>> left(units_.size());
  size_t next = 0;
  for (size_t i = 0; i < units_.size(); ++i)
    for (size_t j = 0; j < units_[i]->params.size(); ++j) left[i].push_back(fired[next++] > 0);
  obey_and_record(reduce_rest(left, in_flight()));
  obey_and_record(end_backward(in_flight()));
}

void Gradients::reduce(const Instruction& step) {
  Unit& unit = *units_[static_cast<size_t>(step.unit)];
  writers_.wait_for_others();
  unit.gradient.buffer_offset = step.offset;
  if (unit.gradient.open)
    move_to_plan(unit);
  else
    open(unit);
  open_regions(unit);
  for (const auto& param : unit.params)
    if (param->region().gradient.buffer.defined() && !param->gradient.in_buffer())
      param->view_of(param->region().gradient.buffer).zero_();
  shards_.reduce(unit, used_now(step, unit));
  for (const auto& param : unit.params) param->gradient.state = ParamGradient::State::none;
  unit.gradient.open = false;
  unit.gradient.buffer_offset = -1;
  ++unit.gradient.reduces;
}

// If ranks do not exchange in every step which parameters they used, a rank that used more than planned
// reports it at the end.
std::vector<bool> Gradients::used_now(const Instruction& planned, const Unit& unit) {
  std::vector<bool> used = planned.used;
  if (policy_.asks_ranks_every_step || !schedule_.following()) return used;
  for (size_t i = 0; i < unit.params.size(); ++i) used[i] = used[i] || unit.params[i]->gradient.in_buffer();
  if (used != planned.used) {
    surprised_ = true;
    schedule_.widen(planned, used);
  }
  return used;
}

// Slices get their gradients with the last backward of a step.
void Gradients::give_to_mode(const std::vector<int64_t>& used) {
  size_t next = 0;
  for_each_param(
      [&](UnitParam& param) { param.gradient.used_by_any_rank |= !used.empty() && used[next] > 0, ++next; });
  const auto take = [&](UnitRegion& region, const at::Tensor& sum, double scale) {
    shards_.take(region, sum, scale);
  };
  if (!mode_->end_backward(units_, take)) return;
  shards_.end_in_host_memory();
  for_each_param([&](UnitParam& param) {
    if (!std::exchange(param.gradient.used_by_any_rank, false)) return;
    TORCH_CHECK(!param.slice.grad().defined(), "fsdp: reproducible: parameter '", param.names.front(),
                "' has a gradient of the step before; call zero_grad() after every step");
    param.slice.mutable_grad() = param.gradient.slice;
    param.gradient.callback_pending = tells;
  });
}

void Gradients::drop() {
  copy_to_.clear();
  copy_from_.clear();
  for (const auto& unit : units_) {
    unit->gradient.open = false;
    unit->gradient.buffer_offset = -1;
    for (const auto& region : unit->regions)
      region->gradient.buffer = region->gradient.row_sum = at::Tensor();
  }
  for_each_param([&](UnitParam& param) {
    param.gradient.state = ParamGradient::State::none;
    param.gradient.used_locally = param.gradient.in_row = param.gradient.callback_pending = false;
    if (mode_ == nullptr)
      param.gradient.used_by_any_rank = false;  // uses in the step's other backwards count
  });
}

void Gradients::abandon() {
  const Quiet quiet;
  copy_waiting();
  drop();
  if (mode_ != nullptr) mode_->drop_backward();
  surprised_ = false;
  shards_.drop_pending();
  shards_.let_go(units_);
}

}  // namespace fsdp::detail
