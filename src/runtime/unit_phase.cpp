#include "runtime/unit_phase.h"

#include <algorithm>
#include <string>

#include "base/env.h"
#include "base/log.h"

namespace fsdp::detail {

UnitPhases::UnitPhases(const std::vector<std::shared_ptr<Unit>>& units, int rank)
    : units_(units), rank_(rank), logs_(env_flag("FSDP_LOG_UNITS")) {}

void UnitPhases::reads(Unit& unit, Phase phase) {
  if (in_forward_ != nullptr && (phase == Phase::backward || in_forward_ != &unit))
    move(*std::exchange(in_forward_, nullptr), UnitPhase::idle);
  if (phase == Phase::forward) {
    in_forward_ = &unit;
    move(unit, UnitPhase::forward);
  } else if (unit.phase == UnitPhase::idle) {
    move(unit, UnitPhase::backward_pre);
  }
}

// A unit whose gradients have arrived may be gathered once more for a later forward.
void UnitPhases::obeys(const Instruction& step) {
  if (step.action != Action::gather && step.action != Action::reduce) return;
  Unit& unit = *units_[static_cast<size_t>(step.unit)];
  if (step.action == Action::reduce)
    move(unit, UnitPhase::backward_post);
  else if (unit.phase == UnitPhase::idle)
    move(unit, UnitPhase::backward_pre);
}

void UnitPhases::arrived(UnitParam& param) {
  Unit& unit = *param.unit;
  param.arrived = true;
  const bool complete = std::all_of(unit.params.begin(), unit.params.end(),
                                    [](const auto& one) { return one->arrived || !one->requires_grad; });
  if (complete)
    move(unit, UnitPhase::backward_post);
  else if (unit.phase == UnitPhase::idle)
    move(unit, UnitPhase::backward_pre);
}

void UnitPhases::ends_backward() {
  for (const auto& unit : units_)
    if (std::any_of(unit->params.begin(), unit->params.end(), [](const auto& one) { return one->arrived; }))
      move(*unit, UnitPhase::backward_post);
}

void UnitPhases::rest() {
  in_forward_ = nullptr;
  for (const auto& unit : units_) {
    for (const auto& param : unit->params) param->arrived = false;
    if (unit->phase != UnitPhase::summon) move(*unit, UnitPhase::idle);
  }
}

void UnitPhases::summon(const std::vector<Unit*>& units) {
  for (Unit* unit : units) move(*unit, UnitPhase::summon);
}

void UnitPhases::dismiss(const std::vector<Unit*>& units) {
  for (Unit* unit : units) move(*unit, UnitPhase::idle);
}

void UnitPhases::tell(const Unit& unit, UnitPhase from) const {
  if (logs_)
    log_info("rank " + std::to_string(rank_) + ": unit '" + unit.name() + "': " + to_string(from) + " -> " +
             to_string(unit.phase));
  if (listener_) listener_({.unit = unit.name(), .from = from, .to = unit.phase});
}

}  // namespace fsdp::detail
