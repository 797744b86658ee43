// UnitPhases: the phase of a step that every unit is in, and the listener for changes.
#pragma once

#include <fsdp/insight.h>

#include <functional>
#include <memory>
#include <vector>

#include "plan/plan.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// The engine reports events; UnitPhases derives the phases. FSDP_LOG_UNITS=1: every transition is logged.
class UnitPhases {
 public:
  using Listener = std::function<void(const UnitTransition&)>;

  UnitPhases(const std::vector<std::shared_ptr<Unit>>& units, int rank);

  void listen(Listener listener) { listener_ = std::move(listener); }

  // An operator is about to read `unit`.
  void reads(Unit& unit, Phase phase);
  // Inside a backward: `step` of the plan is being carried out.
  void obeys(const Instruction& step);
  // A parameter's gradient is complete.
  void arrived(UnitParam& param);
  // The backward ends: all gradients that arrived are reduced now, complete or not.
  void ends_backward();
  // A call of the model or a backward has ended or failed.
  void rest();
  // full_params() begins and ends.
  void summon(const std::vector<Unit*>& units);
  void dismiss(const std::vector<Unit*>& units);
  // The unit that operators of forward read last; null: none in this call.
  const Unit* in_forward() const { return in_forward_; }

 private:
  void move(Unit& unit, UnitPhase to) {
    if (unit.phase != to) tell(unit, std::exchange(unit.phase, to));
  }
  void tell(const Unit& unit, UnitPhase from) const;

  const std::vector<std::shared_ptr<Unit>>& units_;
  int rank_;
  bool logs_;
  Listener listener_;
  Unit* in_forward_ = nullptr;  // the unit that operators of forward are reading
};

}  // namespace fsdp::detail
