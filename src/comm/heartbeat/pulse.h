// Pulse: the state of a Heartbeat, and the thread that beats and looks.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/heartbeat/beats.h"
#include "comm/heartbeat/heartbeat.h"
#include "comm/heartbeat/wait_report.h"
#include "comm/heartbeat/wait_watch.h"

namespace fsdp::detail {

class Pulse final : public ActivityBoard {
 public:
  Pulse(const GroupInfo& world, std::shared_ptr<WaitOptions> options);
  // Starts the thread, which keeps `self` until it ends.
  static void start(const std::shared_ptr<Pulse>& self);
  // Ends the thread. Waits for it, but not long: it may hang in the store.
  void stop();

  // ActivityBoard.
  std::optional<GroupFault> fault() const override { return std::nullopt; }
  void show(const std::string& activity, uint64_t meetings, bool several_threads) override;
  std::string activity_of(int world_rank) const override;

 private:
  friend class Heartbeat;

  void loop();
  void look();
  void look_near(Milliseconds since);
  void look_far();
  bool speaks_for_host() const;
  void judge();
  // The last wait of this rank failed: the others must not name it.
  void fail();
  void complete(const GroupInfo& group, CommError::Details& details);
  bool lower_rank_speaks(Milliseconds patience) const;
  // What process_state() and silence say of a rank.
  std::string state_of(int rank) const;
  Milliseconds silence_of(int rank) const;
  LateRank describe(int rank) const;
  LateRank describe(const std::vector<int>& ranks) const;

  GroupInfo world_;
  std::shared_ptr<WaitOptions> options_;
  Beats beats_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  WaitWatch watch_;
  Patience patience_;
  WaitReport report_;
  int depth_ = 0, watchers_ = 0;
  bool told_steps_ = false, stopping_ = false, ended_ = false;
  bool look_now_ = false;      // a wait that was reported is over
  std::vector<int> waits_in_;  // the ranks of the group that this rank waits in
  std::optional<LateRank> late_, overdue_, lost_;

  // The thread's own.
  std::optional<Clock::time_point> looked_at_, looked_far_at_;
  int looks_ = 0;
  bool store_gone_ = false;
};

}  // namespace fsdp::detail
