#include "comm/heartbeat/wait_watch.h"

#include <algorithm>
#include <utility>

namespace fsdp::detail {

namespace {

constexpr Milliseconds kLongestLook{2000};
constexpr Milliseconds kSilent{1500}, kFarSilent{3000};

}  // namespace

WaitWatch::WaitWatch(int me, std::vector<bool> far) : me_(me), far_(std::move(far)), ranks_(far_.size()) {}

void WaitWatch::see(int rank, const Beat& beat, Milliseconds since) {
  Seen& seen = ranks_[static_cast<size_t>(rank)];
  since = std::min(since, kLongestLook);
  const bool same_wait = seen.known && beat.waits_now() && beat.waits == seen.beat.waits;
  seen.waited = same_wait ? seen.waited + since : Milliseconds{0};
  seen.silent = seen.known && beat.count == seen.beat.count ? seen.silent + since : Milliseconds{0};
  seen.beat = beat;
  seen.known = true;
}

bool WaitWatch::is_silent(int rank) const {
  return silent(rank) >= (far_[static_cast<size_t>(rank)] ? kFarSilent : kSilent);
}

bool WaitWatch::is_late(int rank) const {
  const Seen& seen = at(rank);
  if (rank == me_ || seen.beat.count == 0 || seen.beat.left) return false;
  if (is_silent(rank)) return true;
  const bool same_meeting = seen.beat.meetings % 2 == 1 && seen.beat.meetings == beat(me_).meetings;
  return !seen.beat.waits_now() && !same_meeting;
}

std::vector<int> WaitWatch::late(std::span<const int> group) const {
  std::vector<int> found;
  for (const int rank : group)
    if (is_late(rank)) found.push_back(rank);
  if (!found.empty()) return found;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
    if (is_late(rank)) found.push_back(rank);
  return found;
}

int WaitWatch::silent_for(Milliseconds time) const {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
    if (rank != me_ && is_late(rank) && is_silent(rank) && silent(rank) >= time) return rank;
  return -1;
}

}  // namespace fsdp::detail
