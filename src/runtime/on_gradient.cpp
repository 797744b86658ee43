// Gives slices their gradients, and calls the user's function, maybe while backward still runs.
#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/engine.h"
#include "watch/quiet.h"

namespace fsdp::detail {

// Note [Told gradients]
// A unit's gradients are shown before the backward ends if the plan has them settled and does nothing more
// with the unit in this backward: no operator reads it, so its slices may be written. All its gradients must
// have arrived on this rank: a block that is recomputed in one step and not in the next has them in another
// order. Which of its parameters any rank used is known early only if the plan has all of them. A write then
// waits for the peers that read this unit's shard, which have released it or will without this rank.
// Gradients are told when the backward ends if there is no plan, for units that are whole on every rank, and
// if gradients are checked, which must be done for all before a parameter changes.
void Gradients::show_settled(Unit& unit) {
  if (!tells || check_ || mode_ != nullptr || unit.slot.is_private || schedule_.needs_again(unit.id)) return;
  // Downloads to host memory are complete when the backward ends.
  if (std::any_of(unit.regions.begin(), unit.regions.end(),
                  [](const auto& region) { return region->spec.gradient_on_host; }))
    return;
  const auto& params = unit.params;
  if (!std::all_of(params.begin(), params.end(), [](const auto& param) {
        return !param->requires_grad ||
               (param->arrived && param->gradient.used_by_any_rank && param->gradient.slice.defined());
      }))
    return;
  for (const auto& param : params)
    if (std::exchange(param->gradient.used_by_any_rank, false)) show_now(*param);
  for (const auto& region : unit.regions) GradientShards::forget(*region);
}

// With one rank there is nothing to settle.
void Gradients::show_complete() {
  if (!alone() || check_) return;
  const Quiet quiet;
  for (const auto& unit : units_) {
    const bool complete = std::all_of(unit->params.begin(), unit->params.end(), [](const auto& param) {
      return param->gradient.used_locally || !param->requires_grad;
    });
    if (!complete || unit->params.empty() || schedule_.needs_again(unit->id)) continue;
    copy_waiting();
    for (const auto& param : unit->params) {
      if (!std::exchange(param->gradient.used_locally, false)) continue;
      param->gradient.state = ParamGradient::State::none;
      param->gradient.callback_pending = true;
      if (std::exchange(param->gradient.used_by_any_rank, false)) shards_.show(*param);
    }
    for (const auto& region : unit->regions) GradientShards::forget(*region);
  }
}

// `used`: number of ranks that used each parameter; empty: the reduces know it.
void Gradients::show(const std::vector<int64_t>& used) {
  size_t next = 0;
  for_each_param([&](UnitParam& param) {
    const bool reduced = std::exchange(param.gradient.used_by_any_rank, false);
    const bool somewhere = used.empty() ? reduced : used[next] > 0;
    ++next;
    if (somewhere && param.gradient.slice.defined()) show_now(param);
    if (!alone()) return;
    param.gradient.state = ParamGradient::State::none;
    param.gradient.callback_pending = std::exchange(param.gradient.used_locally, false) && tells;
  });
}

void Gradients::show_now(UnitParam& param) const {
  shards_.show(param);
  param.gradient.callback_pending = tells;
}

void Engine::set_on_gradient(std::function<void(const std::string&, at::Tensor&)> done) {
  TORCH_CHECK(!done || !host || !host->stepper,
              "fsdp: on_gradient() with AdamW::step_in_backward(), which uses the gradients itself");
  on_gradient_ = std::move(done);
  tells_gradients = static_cast<bool>(on_gradient_);
  gradients_.tells = tells_gradients;
}

// Not inside a scope of our own operators, so that the observer sees the user's writes to slices. Slices
// without elements count too: all ranks must know that a unit is written.
void Engine::tell_gradients(bool backward_ended) {
  if (!on_gradient_) return;
  if (!backward_ended && task_ != -1) gradients_.show_complete();
  telling_ = true;
  const auto done = [&](bool*) { telling_ = false; };
  const std::unique_ptr<bool, decltype(done)> scope(&telling_, done);
  for (UnitParam* param : params)
    if (std::exchange(param->gradient.callback_pending, false) && param->slice.grad().defined())
      on_gradient_(param->names.front(), param->slice);
}

}  // namespace fsdp::detail
