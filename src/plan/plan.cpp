#include "plan/plan.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "plan/arena.h"

namespace fsdp::detail {

namespace {

// A unit in one of its lifetimes: from run `begin` to its last use.
struct Stay {
  UnitId unit = 0;
  int32_t begin = 0;
  std::vector<int32_t> uses;  // runs, in order

  int32_t end() const { return uses.back() + 1; }
};

// The last run that each run looks ahead to.
std::vector<int32_t> reach(const std::vector<Access>& runs, const PlanOptions& options) {
  const auto count = static_cast<int32_t>(runs.size());
  std::vector<int32_t> last(runs.size());
  for (int32_t p = count - 1; p >= 0; --p) {
    const auto i = static_cast<size_t>(p);
    int ahead = runs[i].phase == Phase::forward ? options.forward_ahead : options.backward_ahead;
    if (options.max_slots > 0) ahead = std::min(ahead, options.max_slots - 1);
    const int32_t next = p + 1 < count ? last[i + 1] : p;
    last[i] = std::min(p + std::clamp(ahead, 0, count), next);
  }
  return last;
}

// From the first use in forward to the last in backward, for units that are kept; none for others.
struct Hold {
  int32_t first = -1;
  int32_t last = -1;

  bool covers(int32_t from, int32_t to) const { return first >= 0 && first <= from && to <= last; }
};

std::vector<Hold> holds(const std::vector<Access>& runs, const std::vector<UnitNeed>& units) {
  std::vector<Hold> all(units.size());
  for (size_t p = 0; p < runs.size(); ++p) {
    const auto unit = static_cast<size_t>(runs[p].unit);
    if (!units.at(unit).keep) continue;
    Hold& hold = all[unit];
    if (runs[p].phase == Phase::backward)
      hold.last = static_cast<int32_t>(p);
    else if (hold.first < 0)
      hold.first = static_cast<int32_t>(p);
  }
  return all;
}

// In the order of first uses.
std::vector<Stay> find_stays(const std::vector<Access>& runs, const std::vector<UnitNeed>& units,
                             const PlanOptions& options) {
  const std::vector<int32_t> last = reach(runs, options);
  const std::vector<Hold> kept = holds(runs, units);
  std::vector<std::optional<size_t>> latest(units.size());
  std::vector<Stay> stays;
  int32_t begin = 0;  // the first run that looks ahead to p
  for (int32_t p = 0; p < static_cast<int32_t>(runs.size()); ++p) {
    while (last[static_cast<size_t>(begin)] < p) ++begin;
    const UnitId unit = runs[static_cast<size_t>(p)].unit;
    std::optional<size_t>& stay = latest[static_cast<size_t>(unit)];
    const bool goes_on = stay && (begin <= stays[*stay].end() ||
                                  kept[static_cast<size_t>(unit)].covers(stays[*stay].uses.back(), p));
    if (!goes_on) {
      stay = stays.size();
      stays.push_back({.unit = unit, .begin = begin, .uses = {}});
    }
    stays[*stay].uses.push_back(p);
  }
  return stays;
}

Packing pack_stays(const std::vector<Stay>& stays, const std::vector<UnitNeed>& units, const Plan* like,
                   const std::vector<Access>& runs) {
  std::vector<Lifetime> lifetimes;
  for (const Stay& stay : stays)
    lifetimes.push_back({stay.begin, stay.end(), units[static_cast<size_t>(stay.unit)].slot_bytes});
  const size_t fork = like != nullptr ? common_runs(*like, runs) : 0;
  if (fork == 0) return pack(lifetimes);
  const auto last = static_cast<int32_t>(fork) - 1;  // run that both have
  for (const auto& [unit, offset] : residents(*like, fork - 1))
    for (size_t i = 0; i < stays.size(); ++i)
      if (stays[i].unit == unit && stays[i].begin <= last && last < stays[i].end())
        lifetimes[i].fixed = offset;
  return pack(lifetimes);
}

}  // namespace

std::vector<Access> collapse(const std::vector<Access>& trace) {
  std::vector<Access> runs;
  std::unique_copy(trace.begin(), trace.end(), std::back_inserter(runs));
  return runs;
}

std::vector<std::pair<UnitId, int64_t>> residents(const Plan& plan, size_t run) {
  std::vector<std::pair<UnitId, int64_t>> there;
  for (size_t p = 0; p <= run && p < plan.runs.size(); ++p)
    for (const Instruction& step : plan.runs[p].before) {
      if (step.action == Action::gather) there.emplace_back(step.unit, step.offset);
      if (step.action == Action::release)
        std::erase_if(there, [&](const auto& one) { return one.first == step.unit; });
    }
  return there;
}

size_t common_runs(const Plan& plan, const std::vector<Access>& runs) {
  size_t n = 0;
  while (n < runs.size() && n < plan.runs.size() && plan.runs[n].access == runs[n]) ++n;
  return n;
}

Plan make_plan(const std::vector<Access>& trace, const std::vector<UnitNeed>& units,
               const PlanOptions& options, const Plan* like) {
  const std::vector<Access> runs = collapse(trace);
  const std::vector<Stay> stays = find_stays(runs, units, options);
  const Packing packing = pack_stays(stays, units, like, runs);

  Plan plan{.runs = {}, .after = {}, .arena_bytes = packing.bytes};
  for (const Access& access : runs) plan.runs.push_back({.access = access, .before = {}});
  const auto emit = [&](int32_t p, Action action, size_t i) {
    const auto run = static_cast<size_t>(p);
    auto& list = run < plan.runs.size() ? plan.runs[run].before : plan.after;
    list.push_back({.action = action, .unit = stays[i].unit, .offset = packing.offsets[i]});
  };
  // One pass per kind of instruction gives their order before a run.
  const auto ahead = [&](size_t i) { return stays[i].begin < stays[i].uses.front(); };
  for (size_t i = 0; i < stays.size(); ++i) emit(stays[i].end(), Action::release, i);
  for (size_t i = 0; i < stays.size(); ++i)
    if (!ahead(i)) emit(stays[i].begin, Action::gather, i);
  for (size_t i = 0; i < stays.size(); ++i)
    for (const int32_t p : stays[i].uses) emit(p, Action::use, i);
  for (size_t i = 0; i < stays.size(); ++i)
    if (ahead(i)) emit(stays[i].begin, Action::gather, i);
  return plan;
}

}  // namespace fsdp::detail
