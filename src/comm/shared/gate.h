// Gate: waiting for and waking the ranks of a group, and the one fault that ends it.
#pragma once

#include <fsdp/error.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/liveness.h"
#include "comm/shared/control.h"

namespace fsdp::detail {

// The last sentence of errors about ranks that are in different calls.
inline constexpr const char* kSameCalls =
    "Every rank must make the same calls (forward, backward, save() and others) equally often and in "
    "the same order: see docs/evaluation.md";

// Note [Doorbells]
// A rank sleeps on its own doorbell (a futex) and first says which kinds of events it sleeps for. A rank that
// makes a condition true then reads the `asleep` words and rings only the ranks concerned; if none sleeps, no
// system call is made. Both sides use sequentially consistent operations, so either the sleeper sees the
// condition or the other side sees the sleeper. Sleeps are cut into slices; after each, the sleeper looks for
// dead peers. The first rank to see a fault writes it into the control block and rings all ranks, so all
// report the same fault.
class Gate {
 public:
  enum class Outcome { ready, fault, timeout };

  // `liveness` may be null: ranks that are threads die together. `ranks_on_host`: in the whole world.
  // `world_ranks`: world ranks of this group's ranks; empty: the same numbers.
  Gate(ControlView view, int rank, int ranks_on_host, std::unique_ptr<Liveness> liveness,
       std::vector<int> world_ranks = {});
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // The reason why this rank will leave, and the culprit if it does; "" clears it. See Comm::leaving.
  void note(std::string_view why, int culprit);
  bool noted(int rank) const { return view_.page(rank).noted.load() != 0; }
  // See Note [Ranks that give up].
  void give_up() { view_.page(rank_).given_up.fetch_add(1); }
  // True if `rank` skipped operations that this rank has not given up.
  bool left_out(int rank) const { return given_up(rank) > given_up(rank_); }
  // True if any rank is in operations that this rank skipped.
  bool others_miss_this() const;
  static constexpr uint64_t kNoMeetings = UINT64_MAX - 1;  // even, and not below any count
  // See Note [Activities]. A long one is cut and ends in "...". `activity()` is empty if the rank has none.
  void show(std::string_view activity, uint64_t meetings);
  std::string activity(int rank) const;
  // "is in its 5th forward, for 3 s"; empty if the rank has none. Seconds are left out below one.
  std::string activity_text(int rank) const;
  // True if `rank` is in a save() or load() that this rank has not reached.
  bool meets_without_this(int rank) const;
  // Marks this rank as gone and wakes the ranks that wait for it. `clean`: no operation is incomplete.
  void leave(bool clean);
  // Reports that others need `rank`, which left or is about to, with the reason it noted.
  void report_left(int rank);

  // Reports a peer that died without leaving first.
  void look_for_dead();

  // Wakes the ranks that sleep for any of `interests`.
  void ring(uint32_t interests);
  void ring(int rank, uint32_t interests);

  // Blocks until `ready()` holds. `needs(r)`: ready() cannot become true if rank r has left. `look()` is
  // called repeatedly meanwhile; it may report a fault.
  template <class Ready, class Needs, class Look>
  Outcome wait(uint32_t interests, Clock::time_point deadline, Ready ready, Needs needs, Look look) {
    if (ready()) return Outcome::ready;
    if (spin(ready)) return Outcome::ready;
    for (auto next_look = Clock::now() + kSlice;;) {
      const uint32_t seen = begin_sleep(interests);
      if (ready()) return end_sleep(), Outcome::ready;
      if (Clock::now() >= next_look) {
        look_for_dead();
        look();
        next_look = Clock::now() + kSlice;
      }
      look_for_left(needs);
      // A condition that became true while the group failed is still good.
      if (faulted()) return end_sleep(), !aborted() && ready() ? Outcome::ready : Outcome::fault;
      if (Clock::now() >= deadline) return end_sleep(), Outcome::timeout;
      sleep(seen, deadline);
      end_sleep();
    }
  }

  // True if `rank` was just seen waiting for others, so it is not computing, stopped or gone.
  bool waits(int rank) const;

  bool aborted() const { return fault().kind == static_cast<uint8_t>(CommFault::aborted) + 1; }
  bool faulted() const { return view_.fault().load() != 0; }
  // The first report wins; later ones are dropped. `culprit` is a group rank. From any thread.
  void report(CommFault kind, int culprit, std::string_view reason);
  Fault fault() const { return Fault::unpack(view_.fault().load()); }
  std::string fault_reason() const;

  const ControlView& view() const { return view_; }
  int rank() const { return rank_; }
  int world_rank(int rank) const {
    return world_ranks_.empty() ? rank : world_ranks_[static_cast<size_t>(rank)];
  }

 private:
  template <class Ready>
  bool spin(Ready ready) {
    const auto until = Clock::now() + kSpin;
    do {
      for (int i = 0; i < (crowded_ ? 1 : 32); ++i) {
        pause();
        if (ready()) return true;
      }
    } while (Clock::now() < until);
    return false;
  }

  template <class Needs>
  void look_for_left(Needs needs) {
    for (int r = 0; r < view_.size(); ++r)
      if (r != rank_ && has_left(r) && needs(r)) report_left(r);
  }

  void pause() const;
  uint32_t begin_sleep(uint32_t interests);
  void end_sleep();
  void sleep(uint32_t seen, Clock::time_point deadline);  // until a ring, or a slice has passed
  bool has_left(int rank) const;
  uint32_t given_up(int rank) const { return view_.page(rank).given_up.load(); }
  void report_note(int rank);

  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr Milliseconds kSlice{25};

  ControlView view_;
  int rank_;
  std::unique_ptr<Liveness> liveness_;
  std::vector<int> world_ranks_;
  std::mutex report_mutex_;  // guards this rank's reason
  bool crowded_;             // more ranks than processors
};

}  // namespace fsdp::detail
