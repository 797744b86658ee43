// WaitWatch: finds out, from the beats of all ranks, which rank the others wait for. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "comm/heartbeat/beat.h"

namespace fsdp::detail {

// Note [Who is late]
// Collectives of several groups, of any backend, and meetings through the store make ranks wait for each
// other. Each rank shows whether it waits. So the ranks that are late are those that do not wait while others
// do; who waits for whom need not be known. If ranks of one group all wait, one of them waits in another
// group for the late rank: then all ranks of the world are looked at. If all of them wait, nobody is late: a
// large message is on its way, or ranks wait for each other, which the timeout ends.
//
// A rank without new beats is silent: stopped, or without a processor. It is late even if it had begun to
// wait. One that has never beaten is not late: it may have no heartbeat. Nor is a rank that reads or writes
// in the save() or load() that this rank waits in: that may take long.
//
// Times are sums over looks, each limited. So a gang that was stopped as a whole and goes on finds nobody
// late, and clocks of hosts are not compared.
class WaitWatch {
 public:
  // `far`: ranks whose beats arrive through the store.
  WaitWatch(int me, std::vector<bool> far);

  // A new look at `rank`, `since` after the last one.
  void see(int rank, const Beat& beat, Milliseconds since);

  const Beat& beat(int rank) const { return at(rank).beat; }
  // How long the rank has been in the wait it is in; 0: it does not wait.
  Milliseconds waited(int rank) const { return at(rank).waited; }
  // How long there was no beat of the rank.
  Milliseconds silent(int rank) const { return at(rank).silent; }
  bool is_silent(int rank) const;
  // The ranks of `group`, else of the world, that are late.
  std::vector<int> late(std::span<const int> group) const;
  // A rank of the world that has been silent for `time`; -1: none.
  int silent_for(Milliseconds time) const;

 private:
  struct Seen {
    Beat beat;
    Milliseconds waited{0}, silent{0};
    bool known = false;
  };
  const Seen& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  bool is_late(int rank) const;

  int me_;
  std::vector<bool> far_;
  std::vector<Seen> ranks_;
};

}  // namespace fsdp::detail
