// A second opinion on plans: it follows the instructions and watches memory.
#include <algorithm>
#include <optional>
#include <sstream>

#include "plan/plan.h"

namespace fsdp::detail {

namespace {

// What memory holds while a plan is followed.
class ArenaModel {
 public:
  ArenaModel(const std::vector<UnitNeed>& units, int64_t arena_bytes, int max_slots)
      : units_(units), arena_bytes_(arena_bytes), max_slots_(max_slots), slots_(units.size()) {}

  // Empty, or what is wrong with it.
  std::string follow(const Instruction& step) {
    if (step.unit < 0 || static_cast<size_t>(step.unit) >= units_.size()) return "there is no such unit";
    auto& slot = slots_[static_cast<size_t>(step.unit)];
    if (step.action == Action::gather) return gather(step);
    if (!slot) return "it is not gathered";
    if (slot->offset != step.offset) return "it was gathered at " + std::to_string(slot->offset);
    if (step.action == Action::use) {
      slot->used = true;
      return "";
    }
    const bool used = slot->used;
    slot.reset();
    return used ? "" : "it was gathered and never used";
  }

  bool has(UnitId unit) const { return slots_[static_cast<size_t>(unit)].has_value(); }

  // The first unit that is still gathered.
  std::optional<size_t> left() const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i]) return i;
    return std::nullopt;
  }

 private:
  struct Slot {
    int64_t offset = 0;
    bool used = false;
  };

  std::string gather(const Instruction& step) {
    const auto unit = static_cast<size_t>(step.unit);
    if (slots_[unit]) return "it is gathered already";
    const int64_t bytes = units_[unit].slot_bytes;
    if (step.offset < 0 || step.offset > arena_bytes_ - bytes)
      return "its " + std::to_string(bytes) + " bytes leave the arena of " + std::to_string(arena_bytes_);
    int counted = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i]) continue;
      const int64_t from = std::max(step.offset, slots_[i]->offset);
      const int64_t to = std::min(step.offset + bytes, slots_[i]->offset + units_[i].slot_bytes);
      if (from < to) return "it overlaps unit " + std::to_string(i);
      if (!units_[i].keep) ++counted;
    }
    if (max_slots_ > 0 && !units_[unit].keep && counted >= max_slots_) return "all slots are taken";
    slots_[unit] = Slot{.offset = step.offset};
    return "";
  }

  const std::vector<UnitNeed>& units_;
  const int64_t arena_bytes_;
  const int max_slots_;
  std::vector<std::optional<Slot>> slots_;
};

std::string words(const Instruction& step) {
  static constexpr const char* kNames[] = {"release", "gather", "use"};
  std::ostringstream text;
  text << kNames[static_cast<size_t>(step.action)] << " of unit " << step.unit << " at " << step.offset;
  return text.str();
}

std::string follow_all(ArenaModel& model, const std::vector<Instruction>& steps) {
  for (const Instruction& step : steps)
    if (const std::string wrong = model.follow(step); !wrong.empty()) return words(step) + ": " + wrong;
  return "";
}

std::string follow_run(ArenaModel& model, const PlannedRun& run) {
  if (std::string wrong = follow_all(model, run.before); !wrong.empty()) return wrong;
  const auto uses = std::count_if(run.before.begin(), run.before.end(), [&](const Instruction& step) {
    return step.action == Action::use && step.unit == run.access.unit;
  });
  if (uses != 1) return std::to_string(uses) + " uses of its unit instead of one";
  return model.has(run.access.unit) ? "" : "its unit is released before it runs";
}

}  // namespace

std::string check_plan(const Plan& plan, const std::vector<UnitNeed>& units, const PlanOptions& options) {
  ArenaModel model(units, plan.arena_bytes, options.max_slots);
  for (size_t p = 0; p < plan.runs.size(); ++p)
    if (const std::string wrong = follow_run(model, plan.runs[p]); !wrong.empty())
      return "before run " + std::to_string(p) + ": " + wrong;
  if (const std::string wrong = follow_all(model, plan.after); !wrong.empty())
    return "after the last run: " + wrong;
  if (const auto unit = model.left())
    return "after the last run: unit " + std::to_string(*unit) + " is still gathered";
  return "";
}

}  // namespace fsdp::detail
