// Which phase of a step every unit is in, and who is told when it changes.
#pragma once

#include <fsdp/insight.h>

#include <functional>
#include <memory>
#include <vector>

#include "plan/plan.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// The engine says what happens; UnitPhase says what it means. FSDP_LOG_UNITS=1: every transition is logged.
class UnitPhases {
 public:
  using Listener = std::function<void(const UnitTransition&)>;

  UnitPhases(const std::vector<std::shared_ptr<Unit>>& units, int rank);

  void listen(Listener listener) { listener_ = std::move(listener); }

  // An operator is about to read `unit`.
  void reads(Unit& unit, Phase phase);
  // Inside a backward the plan's `step` is carried out.
  void obeys(const Instruction& step);
  // A parameter's gradient is complete.
  void arrived(UnitParam& param);
  // What arrived is reduced now, complete or not.
  void ends_backward();
  // A call of the model or a backward is over, or has failed.
  void rest();
  // full_params() begins and ends.
  void summon(const std::vector<Unit*>& units);
  void dismiss(const std::vector<Unit*>& units);

 private:
  void move(Unit& unit, UnitPhase to) {
    if (unit.phase != to) tell(unit, std::exchange(unit.phase, to));
  }
  void tell(const Unit& unit, UnitPhase from) const;

  const std::vector<std::shared_ptr<Unit>>& units_;
  int rank_;
  bool logs_;
  Listener listener_;
  Unit* in_forward_ = nullptr;  // the one that operators of forward read now
};

}  // namespace fsdp::detail
