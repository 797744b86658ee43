// A second opinion on plans: it follows the instructions and watches memory.
#include <algorithm>
#include <deque>
#include <optional>
#include <sstream>

#include "plan/plan.h"

namespace fsdp::detail {

namespace {

// Memory of an arena that is in use.
struct Taken {
  int64_t offset = 0;
  int64_t bytes = 0;
  UnitId unit = 0;
};

// Empty, or the reason why `wanted` must not be taken.
std::string conflict(const Taken& wanted, const std::vector<Taken>& taken, int64_t arena_bytes) {
  if (wanted.offset < 0 || wanted.offset > arena_bytes - wanted.bytes)
    return "its " + std::to_string(wanted.bytes) + " bytes leave the arena of " + std::to_string(arena_bytes);
  for (const Taken& other : taken)
    if (std::max(wanted.offset, other.offset) <
        std::min(wanted.offset + wanted.bytes, other.offset + other.bytes))
      return "it overlaps unit " + std::to_string(other.unit);
  return "";
}

// The contents of slots while a plan is followed.
class SlotModel {
 public:
  SlotModel(const std::vector<UnitNeed>& units, int64_t arena_bytes, int max_slots)
      : units_(units), arena_bytes_(arena_bytes), max_slots_(max_slots), slots_(units.size()) {}

  std::string follow(const Instruction& step) {
    auto& slot = slots_[static_cast<size_t>(step.unit)];
    if (step.action == Action::gather) return gather(step);
    if (!slot) return "it is not gathered";
    if (slot->offset != step.offset) return "it was gathered at " + std::to_string(slot->offset);
    if (step.action == Action::use) {
      slot->used = true;
      slot->listed = false;
      return "";
    }
    const bool used = slot->used;
    slot.reset();
    return used ? "" : "it was gathered and never used";
  }

  // A run begins, with `list` to be gathered: listed units count against no slots until they are used.
  void begin_run(UnitId own, const std::vector<UnitId>* list) {
    listed_.clear();
    if (list == nullptr) return;
    for (const UnitId unit : *list) {
      if (unit == own || static_cast<size_t>(unit) >= slots_.size()) continue;
      listed_.push_back(unit);
      if (auto& slot = slots_[static_cast<size_t>(unit)]) slot->listed = true;
    }
  }

  bool has(UnitId unit) const { return slots_[static_cast<size_t>(unit)].has_value(); }

  // The first unit that is still gathered.
  std::optional<size_t> left() const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i] && !units_[i].stays_after_backward) return i;
    return std::nullopt;
  }

 private:
  struct Slot {
    int64_t offset = 0;
    bool used = false;
    bool listed = false;  // gathered for a list, and not used since then
  };

  std::string gather(const Instruction& step) {
    const auto unit = static_cast<size_t>(step.unit);
    if (slots_[unit]) return "it is gathered already";
    std::vector<Taken> taken;
    int counted = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i]) continue;
      taken.push_back({slots_[i]->offset, units_[i].slot_bytes, static_cast<UnitId>(i)});
      if (!units_[i].stays_gathered && !units_[i].stays_after_backward && !slots_[i]->listed) ++counted;
    }
    const std::string wrong = conflict({step.offset, units_[unit].slot_bytes}, taken, arena_bytes_);
    if (!wrong.empty()) return wrong;
    const bool listed = std::find(listed_.begin(), listed_.end(), step.unit) != listed_.end();
    if (max_slots_ > 0 && !units_[unit].stays_gathered && !listed && counted >= max_slots_)
      return "all slots are taken";
    slots_[unit] = Slot{.offset = step.offset, .used = false, .listed = listed};
    return "";
  }

  const std::vector<UnitNeed>& units_;
  const int64_t arena_bytes_;
  const int max_slots_;
  std::vector<std::optional<Slot>> slots_;
  std::vector<UnitId> listed_;  // of the current run
};

// The state of gradients while a plan is followed: in an open buffer, or in a sum in flight.
class GradientModel {
 public:
  GradientModel(const std::vector<UnitNeed>& units, int64_t arena_bytes)
      : units_(units), arena_bytes_(arena_bytes), state_(units.size()) {}

  std::string follow(const Instruction& step) {
    State& unit = state_[static_cast<size_t>(step.unit)];
    const bool planned = units_[static_cast<size_t>(step.unit)].buffer_bytes > 0;
    switch (step.action) {
      case Action::open:
        return open(unit, step);
      case Action::reduce:
        if (planned && !unit.open) return "its buffer is not open";
        if (unit.open && unit.open->offset != step.offset)
          return "its buffer was opened at " + std::to_string(unit.open->offset);
        if (unit.sum != Sum::none) return "its last sum has not settled";
        unit.sum = Sum::in_row;
        unit.read = std::exchange(unit.open, std::nullopt);
        return "";
      case Action::reduce_across:
        if (unit.sum != Sum::in_row) return "it was not reduced";
        unit.sum = Sum::across;
        unit.read.reset();
        return "";
      case Action::settle:
        if (unit.sum == Sum::none) return "it was not reduced";
        unit.sum = Sum::none;
        unit.read.reset();
        return "";
      default:
        return "";
    }
  }

  // Empty, or an error at the end of a backward: buffers may stay open for the next, sums must be settled.
  std::string left_in_flight() const {
    return find("has not settled", [](const State& s) { return s.sum != Sum::none; });
  }
  std::string left_open() const {
    return find("is still open", [](const State& s) { return s.open.has_value(); });
  }

 private:
  enum class Sum : uint8_t { none, in_row, across };
  struct State {
    std::optional<Taken> open;  // gradients arrive there
    std::optional<Taken> read;  // other ranks read it
    Sum sum = Sum::none;
  };

  std::string open(State& unit, const Instruction& step) {
    if (unit.open) return "its buffer is open already";
    std::vector<Taken> taken;
    for (const State& other : state_) {
      if (other.open) taken.push_back(*other.open);
      if (other.read) taken.push_back(*other.read);
    }
    const Taken wanted{step.offset, units_[static_cast<size_t>(step.unit)].buffer_bytes, step.unit};
    std::string wrong = conflict(wanted, taken, arena_bytes_);
    if (wrong.empty()) unit.open = wanted;
    return wrong;
  }

  template <class Which>
  std::string find(const char* what, Which which) const {
    for (size_t i = 0; i < state_.size(); ++i)
      if (which(state_[i])) return "the gradient buffer of unit " + std::to_string(i) + " " + what;
    return "";
  }

  const std::vector<UnitNeed>& units_;
  const int64_t arena_bytes_;
  std::vector<State> state_;
};

std::string words(const Instruction& step) {
  static constexpr const char* kNames[] = {"release", "gather",        "use",    "open",
                                           "reduce",  "reduce_across", "settle", "agree"};
  std::ostringstream text;
  text << kNames[static_cast<size_t>(step.action)] << " of unit " << step.unit << " at " << step.offset;
  return text.str();
}

class Checker {
 public:
  Checker(const Plan& plan, const std::vector<UnitNeed>& units, const PlanOptions& options)
      : options_(options),
        units_(units.size()),
        slots_(units, plan.arena_bytes, options.max_slots),
        gradients_(units, plan.buffer_bytes) {}

  std::string follow(const Moment& moment) {
    if (moment.run) slots_.begin_run(moment.run->unit, options_.list(*moment.run));
    if (std::string wrong = follow(moment.steps, !moment.run); !wrong.empty()) return wrong;
    if (!moment.run) return gradients_.left_in_flight();
    const auto uses = std::count_if(moment.steps.begin(), moment.steps.end(), [&](const Instruction& step) {
      return step.action == Action::use && step.unit == moment.run->unit;
    });
    if (uses != 1) return std::to_string(uses) + " uses of its unit instead of one";
    return slots_.has(moment.run->unit) ? "" : "its unit is released before it runs";
  }

  std::string end(const std::vector<Instruction>& after) {
    if (std::string wrong = follow(after, false); !wrong.empty()) return wrong;
    if (const auto unit = slots_.left()) return "unit " + std::to_string(*unit) + " is still gathered";
    const std::string open = gradients_.left_open();
    return open.empty() ? gradients_.left_in_flight() : open;
  }

 private:
  std::string follow(const std::vector<Instruction>& steps, bool backward_ends) {
    for (const Instruction& step : steps) {
      std::string wrong;
      if (step.unit < 0 || static_cast<size_t>(step.unit) >= units_)
        wrong = "there is no such unit";
      else if (step.action == Action::agree)
        wrong = backward_ends ? "" : "no backward ends here";
      else
        wrong = of_gradients(step.action) ? gradients_.follow(step) : slots_.follow(step);
      if (!wrong.empty()) return words(step) + ": " + wrong;
    }
    return "";
  }

  const PlanOptions& options_;
  const size_t units_;
  SlotModel slots_;
  GradientModel gradients_;
};

}  // namespace

std::string check_plan(const Plan& plan, const std::vector<UnitNeed>& units, const PlanOptions& options) {
  Checker checker(plan, units, options);
  for (size_t m = 0, runs = 0; m < plan.moments.size(); ++m) {
    const bool run = plan.moments[m].run.has_value();
    std::string where = run ? "before run " + std::to_string(runs++) : "at the end of a backward";
    if (const std::string wrong = checker.follow(plan.moments[m]); !wrong.empty())
      return where.append(": ").append(wrong);
  }
  const std::string wrong = checker.end(plan.after);
  return wrong.empty() ? "" : "after the last run: " + wrong;
}

}  // namespace fsdp::detail
