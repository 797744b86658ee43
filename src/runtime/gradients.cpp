#include "runtime/gradients.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

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

void Gradients::reserve(int64_t bytes) {
  if (bytes <= (arena_.defined() ? arena_.numel() : 0)) return;
  const Quiet quiet;
  arena_ = at::Tensor();
  arena_ = mesh_.row.allocate(MemoryUse::reduce, bytes, at::kByte);
}

int64_t Gradients::buffer_bytes() const {
  int64_t bytes = arena_.defined() ? arena_.numel() : 0;
  for (const auto& unit : units_)
    for (const auto& region : unit->regions)
      if (region->buffer.defined() && !region->buffer.is_same(region->gradient) &&
          !(arena_.defined() && region->buffer.is_alias_of(arena_)))
        bytes += static_cast<int64_t>(region->buffer.nbytes());
  return bytes;
}

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

// Planned: memory at the planned place. Otherwise, and while gradients are kept back, memory of its own.
void Gradients::open(Unit& unit) { open(unit, sync ? schedule_.opening(unit.id) : nullptr); }

void Gradients::open(Unit& unit, const Reduction* planned) {
  if (planned != nullptr) take_planned_place(unit, *planned);
  open_regions(unit);
  unit.open = true;
  unit.opened = schedule_.boundary();
}

// A region may have been thawed since the unit was opened.
void Gradients::open_regions(Unit& unit) {
  bool padded = !unit.open;
  for (const auto& region : unit.regions) {
    if (!region->layout.trainable || region->buffer.defined()) continue;
    region->buffer = own_buffer(unit, *region);
    padded = true;
  }
  if (padded) clear_padding(unit);
}

void Gradients::take_planned_place(Unit& unit, const Reduction& planned) {
  if (unit.layout.ranks == 1) return;
  carve(unit, arena_, planned.offset, &UnitRegion::buffer, &UnitRegion::reduce);
  for (const auto& region : unit.regions)
    if (region->buffer.defined()) mesh_.row.claim(as_reals(region->buffer));
}

bool Gradients::in_arena(const UnitRegion& region) const {
  return arena_.defined() && region.buffer.defined() && region.buffer.is_alias_of(arena_);
}

// A gradient may come earlier on this rank than the plan says; ranks reduce in the same memory.
void Gradients::move_to_plan(Unit& unit, const Reduction& planned) {
  if (unit.layout.ranks == 1) return;
  std::vector<at::Tensor> here;
  for (const auto& region : unit.regions) here.push_back(region->buffer);
  if (std::all_of(unit.regions.begin(), unit.regions.end(),
                  [&](const auto& region) { return !region->buffer.defined() || in_arena(*region); }))
    return;
  take_planned_place(unit, planned);
  for (size_t i = 0; i < here.size(); ++i)
    if (here[i].defined()) unit.regions[i]->buffer.copy_(here[i]);
}

void Gradients::leave_plan() {
  for (const auto& unit : units_)
    for (const auto& region : unit->regions)
      if (unit->open && in_arena(*region)) region->buffer = region->buffer.clone();
}

// A whole gradient that needs no cast is summed where it stays.
at::Tensor Gradients::own_buffer(const Unit& unit, UnitRegion& region) {
  if (unit.layout.ranks == 1 && region.reduce == region.gradient_type && mode_ == nullptr &&
      !shards_.busy(region)) {
    shards_.make(region);
    if (!region.shown) return region.gradient;
    GradientShards::forget(region);
  }
  return at::empty({region.layout.total(unit.layout.ranks)}, region.shard.options().dtype(region.reduce));
}

void Gradients::clear_padding(Unit& unit) {
  std::vector<at::Tensor> gaps;
  for (const auto& region : unit.regions) {
    if (!region->buffer.defined()) continue;
    int64_t end = 0;
    const auto gap_before = [&](int64_t start) {
      if (start > end) gaps.push_back(region->buffer.narrow(0, end, start - end));
    };
    for (const auto& param : unit.params) {
      if (&param->region() != region.get()) continue;
      gap_before(param->place.offset);
      end = param->place.offset + param->place.numel;
    }
    gap_before(region->buffer.numel());
  }
  if (!gaps.empty()) at::_foreach_zero_(gaps);
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

// Per parameter, whether this rank has had a gradient for it since the last reduce; at last, whether there is
// one that the plan does not have.
std::vector<int64_t> Gradients::used_here(bool surprised) {
  std::vector<int64_t> used;
  for_each_param([&](UnitParam& param) { used.push_back(param.used ? 1 : 0); });
  used.push_back(surprised ? 1 : 0);
  return used;
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

// Ranks tell each other what they used. Where the policy allows, all of them wait for the answer. Elsewhere
// the host would then wait in every step: there it is read only by a rank that left out a parameter of the
// plan, which no rank may have used, or used one that is not in the plan. The latter must happen on all ranks
// at once.
bool Gradients::anyone_surprised(std::vector<int64_t>& used) {
  std::string late;
  bool left_out = false;
  for (const auto& unit : units_)
    if (unit->open) late = unit->name;
  for_each_param([&](UnitParam& param) { left_out = left_out || (param.reduced && !param.used); });
  const bool surprised = std::exchange(surprised_, false) || !late.empty();
  if (policy_.asks_ranks_every_step) {
    used = sum_over_ranks(used_here(surprised), "used parameters");
    return used.back() > 0;
  }
  at::Tensor total = on_device(used_here(surprised));
  Work work = mesh_.all.all_reduce(total, ReduceOp::sum, "used parameters");
  if (!surprised && !left_out) {
    work.wait();
    return false;
  }
  work.wait(mesh_.all.timeout());
  used = on_host(total);
  TORCH_CHECK(
      !surprised || used.back() == mesh_.all.size(), "fsdp: rank ", mesh_.all.rank(),
      " has gradients for other parameters than in the steps before",
      late.empty() ? "" : " (unit '" + late + "')", " and ", mesh_.all.size() - used.back(),
      " other ranks do not; off the CPU a rank may begin to use a parameter only when all ranks do, in "
      "the same step");
  return surprised;
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

void Gradients::check_finite(const UnitParam& param, const at::Tensor& gradient) {
  if (not_finite_ == nullptr && !at::isfinite(gradient).all().item<bool>()) not_finite_ = &param;
}

// By all ranks, so that all stop at the same step.
void Gradients::throw_not_finite() {
  std::vector<int64_t> found(static_cast<size_t>(mesh_.all.size()), 0);
  std::vector<const UnitParam*> all;
  for_each_param([&](UnitParam& param) { all.push_back(&param); });
  if (const auto* mine = std::exchange(not_finite_, nullptr))
    found[static_cast<size_t>(mesh_.all.rank())] =
        1 + (std::find(all.begin(), all.end(), mine) - all.begin());
  found = sum_over_ranks(found, "gradients not finite");
  std::string who;
  for (size_t r = 0; r < found.size(); ++r)
    if (found[r] > 0)
      who += (who.empty() ? "" : ", ") + std::string("of '") +
             all[static_cast<size_t>(found[r] - 1)]->names.front() + "' on rank " + std::to_string(r);
  TORCH_CHECK(who.empty(), "fsdp: gradients are not finite: ", who,
              ". The parameters are unchanged; look at that rank's batch, the loss and the learning rate.");
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

at::Tensor Gradients::on_device(const std::vector<int64_t>& values) const {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong)
      .to(device_, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<int64_t> Gradients::on_host(const at::Tensor& values) {
  const at::Tensor here = values.cpu();
  const auto* data = here.const_data_ptr<int64_t>();
  return {data, data + here.numel()};
}

std::vector<int64_t> Gradients::sum_over_ranks(const std::vector<int64_t>& values, const char* label) {
  at::Tensor exchanged = on_device(values);
  mesh_.all.all_reduce(exchanged, ReduceOp::sum, label).wait(mesh_.all.timeout());
  return on_host(exchanged);
}

}  // namespace fsdp::detail
