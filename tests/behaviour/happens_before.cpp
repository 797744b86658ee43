#include <algorithm>
#include <iterator>

#include "behaviour/toy_races.h"

namespace fsdp::testing {

namespace {

void join(HappensBefore::Clock& clock, const HappensBefore::Clock& other) {
  for (const auto& [actor, time] : other) clock[actor] = std::max(clock[actor], time);
}

bool covers(const HappensBefore::Clock& clock, HappensBefore::Actor actor, uint64_t time) {
  const auto found = clock.find(actor);
  return found != clock.end() && found->second >= time;
}

std::string name(HappensBefore::Actor actor) {
  return actor == HappensBefore::kHost ? "on the host" : "on stream " + std::to_string(actor);
}

}  // namespace

// The host issues everything: what it knows comes before.
HappensBefore::Clock& HappensBefore::issue(Actor actor) {
  Clock& clock = clocks_[actor];
  if (actor != kHost) join(clock, clocks_[kHost]);
  return clock;
}

HappensBefore::Clock HappensBefore::record(Actor stream) { return issue(stream); }

void HappensBefore::wait(Actor actor, const Clock& reached) { join(issue(actor), reached); }

void HappensBefore::host_waits_for_all() {
  Clock& host = clocks_[kHost];
  for (const auto& [actor, clock] : clocks_) join(host, clock);
}

void HappensBefore::access(Actor actor, Bytes bytes, bool write, const std::string& what) {
  if (bytes.begin >= bytes.end) return;
  Clock& now = issue(actor);
  const Access access{actor, ++now[actor], what};
  cut(bytes.begin);
  cut(bytes.end);
  for (uintptr_t at = bytes.begin; at < bytes.end;) {
    const auto next = cells_.lower_bound(at);
    const bool known = next != cells_.end() && next->first == at;
    const uintptr_t end = next != cells_.end() ? std::min(next->first, bytes.end) : bytes.end;
    Cell& cell = known ? next->second : cells_.emplace(at, Cell{.end = end}).first->second;
    touch(cell, now, access, write);
    at = cell.end;
  }
}

// Cells end or begin at `at`, but none goes across.
void HappensBefore::cut(uintptr_t at) {
  const auto next = cells_.lower_bound(at);
  if (next == cells_.begin()) return;
  Cell& before = std::prev(next)->second;
  if (before.end <= at) return;
  Cell rest = before;
  before.end = at;
  cells_.emplace(at, std::move(rest));
}

void HappensBefore::touch(Cell& cell, const Clock& now, const Access& access, bool write) {
  compare(cell.writes, now, access);
  if (write) {
    compare(cell.reads, now, access);
    cell.writes = {access};
    cell.reads.clear();
    return;
  }
  std::erase_if(cell.reads, [&](const Access& one) { return covers(now, one.actor, one.time); });
  cell.reads.push_back(access);
}

void HappensBefore::compare(const std::vector<Access>& before, const Clock& now, const Access& access) {
  for (const Access& one : before) {
    if (covers(now, one.actor, one.time)) continue;
    const std::string race =
        one.what + " " + name(one.actor) + ", then " + access.what + " " + name(access.actor);
    if (std::find(races_.begin(), races_.end(), race) == races_.end()) races_.push_back(race);
  }
}

void HappensBefore::free(Actor allocated_on, Bytes bytes, const std::vector<Actor>& others) {
  const Clock before = issue(allocated_on);
  for (const Actor other : others) join(clocks_[allocated_on], issue(other));
  access(allocated_on, bytes, /*write=*/true, "free");
  clocks_[allocated_on] = before;
  forget(bytes);
}

void HappensBefore::forget(Bytes bytes) {
  cut(bytes.begin);
  cut(bytes.end);
  cells_.erase(cells_.lower_bound(bytes.begin), cells_.lower_bound(bytes.end));
}

}  // namespace fsdp::testing
