// Patience and WaitReport.
#include <algorithm>

#include "comm/heartbeat/wait_report.h"
#include "comm/heartbeat/wait_words.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kLeast{2000}, kBeforeSteps{10000};
constexpr size_t kSteps = 9;

}  // namespace

void Patience::begin_step(Clock::time_point now) {
  if (begun_) steps_.push_back(std::chrono::duration_cast<Milliseconds>(now - *begun_));
  if (steps_.size() > kSteps) steps_.pop_front();
  begun_ = now;
}

// The median: a single step with an evaluation or a hang in it counts little.
Milliseconds Patience::get() const {
  if (steps_.empty()) return kBeforeSteps;
  std::vector<Milliseconds> sorted(steps_.begin(), steps_.end());
  std::sort(sorted.begin(), sorted.end());
  return std::max(kLeast, 3 * sorted[sorted.size() / 2]);
}

WaitReport::Say WaitReport::look(const std::string& me, Milliseconds waited,
                                 const std::optional<LateRank>& late, bool quiet) {
  Say say;
  if (late) {
    if (!shown_ || shown_->rank != late->rank) say.show = late->text();
    shown_ = late;
    waited_ = waited;
    if (quiet || (logged_ && waited < next_)) return say;
    say.log = me + " has waited since " + time_of_day(waited) + " (" + whole_seconds(waited) + ") for " +
              late->text();
    logged_ = true;
    next_ = std::max(kAgain, 2 * waited);
    return say;
  }
  if (shown_) say.show = "";
  if (logged_) say.log = shown_->name + " goes on, after " + whole_seconds(waited_);
  say.over = true;
  shown_.reset();
  logged_ = false;
  return say;
}

}  // namespace fsdp::detail
