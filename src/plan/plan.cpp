#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "plan/arena.h"
#include "plan/buffer_places.h"

namespace fsdp::detail {

namespace {

// A lifetime of a unit: from run `begin` to its last use.
struct Stay {
  UnitId unit = 0;
  int32_t begin = 0;
  int32_t place = 0;          // index in the list of run `begin`
  std::vector<int32_t> uses;  // runs, in order

  int32_t end() const { return uses.back() + 1; }
};

// The last run that each run looks ahead to.
std::vector<int32_t> reach(const std::vector<Access>& runs, const PlanOptions& options) {
  const auto count = static_cast<int32_t>(runs.size());
  std::vector<int32_t> last(runs.size());
  for (int32_t p = count - 1; p >= 0; --p) {
    const auto i = static_cast<size_t>(p);
    const int in_backward = options.backward == Prefetch::pre ? options.backward_ahead : 0;
    const bool listed = options.list(runs[i]) != nullptr;
    int ahead = runs[i].phase == Phase::forward ? options.forward_ahead : in_backward;
    if (options.max_slots > 0) ahead = std::min(ahead, options.max_slots - 1);
    const int32_t next = p + 1 < count ? last[i + 1] : p;
    last[i] = std::min(p + std::clamp(listed ? 0 : ahead, 0, count), next);
  }
  return last;
}

// The first run whose list names a unit before it is used, and the index in the list.
struct Naming {
  int32_t run = 0;
  int32_t place = 0;
};

// Per run; none if no list names its unit between its last use and this run.
std::vector<std::optional<Naming>> find_namings(const std::vector<Access>& runs, const PlanOptions& options) {
  std::vector<std::optional<Naming>> namings(runs.size());
  std::map<UnitId, Naming> open;  // named, and not used since then
  for (size_t p = 0; p < runs.size(); ++p) {
    const auto found = open.find(runs[p].unit);
    if (found != open.end()) {
      namings[p] = found->second;
      open.erase(found);
    }
    const std::vector<UnitId>* list = options.list(runs[p]);
    if (list == nullptr) continue;
    for (size_t i = 0; i < list->size(); ++i)
      if ((*list)[i] != runs[p].unit)
        open.try_emplace((*list)[i], Naming{static_cast<int32_t>(p), static_cast<int32_t>(i)});
  }
  return namings;
}

// From the first use in forward to the last in backward, for units that stay gathered; none for others.
struct Hold {
  int32_t first = -1;
  int32_t last = -1;

  bool covers(int32_t from, int32_t to) const { return first >= 0 && first <= from && to <= last; }
};

std::vector<Hold> holds(const std::vector<Access>& runs, const std::vector<UnitNeed>& units) {
  std::vector<Hold> all(units.size());
  for (size_t p = 0; p < runs.size(); ++p) {
    const auto unit = static_cast<size_t>(runs[p].unit);
    if (!units.at(unit).stays_gathered) continue;
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
  const std::vector<std::optional<Naming>> namings = find_namings(runs, options);
  const std::vector<Hold> kept = holds(runs, units);
  std::vector<std::optional<size_t>> latest(units.size());
  std::vector<Stay> stays;
  int32_t first = 0;  // the first run that looks ahead to p
  for (int32_t p = 0; p < static_cast<int32_t>(runs.size()); ++p) {
    while (last[static_cast<size_t>(first)] < p) ++first;
    const auto& naming = namings[static_cast<size_t>(p)];
    const bool listed = naming && naming->run < first;
    const int32_t begin = listed ? naming->run : first;
    const UnitId unit = runs[static_cast<size_t>(p)].unit;
    std::optional<size_t>& stay = latest[static_cast<size_t>(unit)];
    const bool goes_on =
        stay && (units[static_cast<size_t>(unit)].stays_after_backward || begin <= stays[*stay].end() ||
                 kept[static_cast<size_t>(unit)].covers(stays[*stay].uses.back(), p));
    if (!goes_on) {
      stay = stays.size();
      stays.push_back({.unit = unit, .begin = begin, .place = listed ? naming->place : 0, .uses = {}});
    }
    stays[*stay].uses.push_back(p);
  }
  return stays;
}

// Stays that begin at a run with a list are ordered by the list; others keep their order.
std::vector<size_t> by_place(const std::vector<Stay>& stays) {
  std::vector<size_t> order(stays.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return stays[a].place < stays[b].place; });
  return order;
}

// Makes every reduction settle where it starts.
void settle_at_once(std::vector<Moment>& moments) {
  std::vector<Moment> settled = moments;
  for (Moment& moment : settled) moment.steps.clear();
  std::map<UnitId, size_t> started;  // schedule points at which reductions in flight began
  for (size_t m = 0; m < moments.size(); ++m)
    for (const Instruction& step : moments[m].steps) {
      const bool follows = step.action == Action::reduce_across || step.action == Action::settle;
      const auto known = started.find(step.unit);
      const size_t to = follows && known != started.end() ? known->second : m;
      settled[to].steps.push_back(step);
      if (step.action == Action::reduce) started[step.unit] = m;
    }
  moments = std::move(settled);
}

// Units that stay gathered after the cycle lie below all others, in every plan.
int64_t offset_of_staying(UnitId unit, const std::vector<UnitNeed>& units) {
  int64_t offset = 0;
  for (size_t i = 0; i < static_cast<size_t>(unit); ++i)
    if (units[i].stays_after_backward) offset += units[i].slot_bytes;
  return offset;
}

// Lifetimes of slots; units that stay gathered after the cycle have fixed offsets.
std::vector<Lifetime> lifetimes_of(const std::vector<Stay>& stays, const std::vector<UnitNeed>& units,
                                   int32_t runs) {
  std::vector<Lifetime> lifetimes;
  for (const Stay& stay : stays) {
    const UnitNeed& need = units[static_cast<size_t>(stay.unit)];
    lifetimes.push_back({stay.begin, stay.end(), need.slot_bytes});
    if (need.stays_after_backward)
      lifetimes.back() = {0, runs, need.slot_bytes, offset_of_staying(stay.unit, units)};
  }
  // A unit that this cycle does not use may still be gathered.
  for (size_t i = 0; i < units.size(); ++i)
    if (units[i].stays_after_backward && std::none_of(stays.begin(), stays.end(), [&](const Stay& stay) {
          return static_cast<size_t>(stay.unit) == i;
        }))
      lifetimes.push_back({0, runs, units[i].slot_bytes, offset_of_staying(static_cast<UnitId>(i), units)});
  return lifetimes;
}

// `fork`: the first schedule point that `like` does not have; `last`: the run before it.
Packing pack_stays(const std::vector<Stay>& stays, std::vector<Lifetime> lifetimes, const Plan* like,
                   size_t fork, int32_t last) {
  if (like == nullptr || fork == 0) return pack(lifetimes);
  for (const auto& [unit, offset] : residents(*like, fork))
    for (size_t i = 0; i < stays.size(); ++i)
      if (stays[i].unit == unit && stays[i].begin <= last && last < stays[i].end())
        lifetimes[i].fixed = offset;
  return pack(lifetimes);
}

}  // namespace

const std::vector<UnitId>* PlanOptions::list(const Access& run) const {
  const PrefetchLists& lists = run.phase == Phase::forward ? forward_lists : backward_lists;
  const auto unit = static_cast<size_t>(run.unit);
  return unit < lists.size() && lists[unit] ? &*lists[unit] : nullptr;
}

std::vector<Place> residents(const Plan& plan, size_t at) {
  std::vector<Place> there;
  for (size_t m = 0; m < at && m < plan.moments.size(); ++m)
    for (const Instruction& step : plan.moments[m].steps) {
      if (step.action == Action::gather) there.emplace_back(step.unit, step.offset);
      if (step.action == Action::release)
        std::erase_if(there, [&](const Place& one) { return one.first == step.unit; });
    }
  return there;
}

std::vector<Place> open_buffers(const Plan& plan, size_t at) {
  std::vector<Place> there;
  for (size_t m = 0; m < at && m < plan.moments.size(); ++m)
    for (const Instruction& step : plan.moments[m].steps) {
      if (step.action == Action::open) there.emplace_back(step.unit, step.offset);
      if (step.action == Action::reduce) std::erase(there, Place(step.unit, step.offset));
    }
  return there;
}

size_t common_moments(const std::vector<Moment>& one, const std::vector<Moment>& other) {
  size_t n = 0;
  while (n < one.size() && n < other.size() && one[n].run == other[n].run) ++n;
  return n;
}

Plan make_plan(const std::vector<Moment>& recorded, const std::vector<UnitNeed>& units,
               const PlanOptions& options, const Plan* like) {
  Plan plan{.moments = recorded, .after = {}};
  std::vector<Access> runs;
  std::vector<size_t> moment_of;  // per run
  for (size_t m = 0; m < plan.moments.size(); ++m) {
    std::erase_if(plan.moments[m].steps, [](const Instruction& step) { return !of_gradients(step.action); });
    if (!plan.moments[m].run) continue;
    runs.push_back(*plan.moments[m].run);
    moment_of.push_back(m);
  }
  if (options.backward == Prefetch::none) settle_at_once(plan.moments);
  plan.buffer_bytes = place_buffers(plan.moments, units);

  const std::vector<Stay> stays = find_stays(runs, units, options);
  const size_t fork = like != nullptr ? common_moments(like->moments, recorded) : 0;
  const auto last = std::lower_bound(moment_of.begin(), moment_of.end(), fork) - moment_of.begin() - 1;
  const Packing packing = pack_stays(stays, lifetimes_of(stays, units, static_cast<int32_t>(runs.size())),
                                     like, fork, static_cast<int32_t>(last));
  plan.arena_bytes = packing.bytes;
  const auto emit = [&](int32_t p, Action action, size_t i) {
    const auto run = static_cast<size_t>(p);
    auto& list = run < runs.size() ? plan.moments[moment_of[run]].steps : plan.after;
    list.push_back({.action = action, .unit = stays[i].unit, .offset = packing.offsets[i]});
  };
  // One pass per kind of instruction sets their order before a run.
  const auto ahead = [&](size_t i) { return stays[i].begin < stays[i].uses.front(); };
  for (size_t i = 0; i < stays.size(); ++i)
    if (!units[static_cast<size_t>(stays[i].unit)].stays_after_backward)
      emit(stays[i].end(), Action::release, i);
  for (size_t i = 0; i < stays.size(); ++i)
    if (!ahead(i)) emit(stays[i].begin, Action::gather, i);
  for (size_t i = 0; i < stays.size(); ++i)
    for (const int32_t p : stays[i].uses) emit(p, Action::use, i);
  for (const size_t i : by_place(stays))
    if (ahead(i)) emit(stays[i].begin, Action::gather, i);
  if (options.backward == Prefetch::post)
    for (Moment& moment : plan.moments)
      if (moment.run && moment.run->phase == Phase::backward)
        std::stable_partition(moment.steps.begin(), moment.steps.end(), [&](const Instruction& step) {
          return step.action == Action::release ||
                 (step.action == Action::gather && step.unit == moment.run->unit);
        });
  return plan;
}

}  // namespace fsdp::detail
