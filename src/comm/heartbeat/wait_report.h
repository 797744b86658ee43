// When a rank that waits says so, and in which words. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace fsdp::detail {

// A rank that others wait for.
struct LateRank {
  int rank = -1;
  std::string name;   // "rank 2 (host h, pid 17)"
  std::string words;  // where_it_is()

  std::string text() const { return name + ", which is " + words; }
};

// How long a rank waits before it says whom for: max(2 s, 3 steps), and 10 s before the first step is over.
class Patience {
 public:
  // A step begins, and the one before it is over.
  void begin_step(Clock::time_point now);
  Milliseconds get() const;

 private:
  std::optional<Clock::time_point> begun_;
  std::deque<Milliseconds> steps_;  // the latest
};

// When to say what. Pure.
class WaitReport {
 public:
  struct Say {
    std::optional<std::string> show;  // for the live line; "": the wait is over
    std::string log;                  // empty: nothing
    bool over = false;                // `log` says that the wait is over
  };
  // `late`: none, or the rank that this one has waited for longer than its patience. `quiet`: another rank
  // speaks for all.
  Say look(const std::string& me, Milliseconds waited, const std::optional<LateRank>& late, bool quiet);
  // The wait ended by an exception, which says what happened.
  void forget() { logged_ = false; }

 private:
  static constexpr Milliseconds kAgain{60000};

  std::optional<LateRank> shown_;
  Milliseconds waited_{0}, next_{0};
  bool logged_ = false;
};

}  // namespace fsdp::detail
