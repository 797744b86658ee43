// Heartbeat: shows the other ranks where this one is, and finds out which rank the others wait for.
#pragma once

#include <fsdp/error.h>
#include <fsdp/waiting.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/owning_process.h"
#include "comm/backend.h"
#include "comm/heartbeat/wait_report.h"

namespace fsdp::detail {

class Pulse;

// What the program has set.
struct WaitOptions {
  std::atomic<int64_t> timeout_ms{0};  // 0: default_timeout()
  std::mutex mutex;                    // held while `show` runs
  ShowWait show;

  Milliseconds timeout() const;
};

// Note [Heartbeats]
// Each rank has a page in memory that the ranks of its host share: the number of its step, whether it waits
// for others, its last collective and its activity (Note [Activities]). The training thread writes them when
// they change. A thread of the rank counts up a number four times a second, and looks at all pages: see Note
// [Who is late]. If this rank waits longer than its patience, the thread says whom for.
//
// It ends nothing itself. Collectives have timeouts of their own, and their errors get the same words
// (complete_fault). Ranks that wait through the store ask overdue() and lost().
//
// Threads: any.
class Heartbeat {
 public:
  Heartbeat() = default;
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Begins to beat, once. Collective over `world`, which has all ranks. Does nothing if ranks are threads of
  // one process, or there is only one.
  void start(const GroupInfo& world);
  void set_timeout(Milliseconds timeout);
  Milliseconds timeout() const;
  // See on_waiting() of <fsdp/waiting.h>.
  void on_waiting(ShowWait show);

  void note_step(int64_t step);
  void note_backward();
  void note_collective(const char* op, std::string_view label);
  // This rank waits for some of `peers`. `failed`: the wait ends by an exception.
  void begin_wait(const std::vector<Peer>& peers);
  void end_wait(bool failed);
  // Between the two, ranks of other hosts are looked at even if this rank does not wait.
  void begin_watching();
  void end_watching();

  // The rank that this one has waited for longer than timeout().
  std::optional<LateRank> overdue() const;
  // A rank that has given no sign of life for longer than timeout().
  std::optional<LateRank> lost() const;
  // See waiting_for() of <fsdp/waiting.h>.
  std::string waiting_for() const;
  // See complete_fault().
  void complete(const GroupInfo& group, CommError::Details& details);

 private:
  OwningProcess owner_;
  std::shared_ptr<WaitOptions> options_ = std::make_shared<WaitOptions>();
  std::shared_ptr<Pulse> pulse_;  // the thread's too; null: it has not started
};

// The heartbeat of a world's rank; made by the first call.
std::shared_ptr<Heartbeat> heartbeat_of(const World& world);

// This rank waits for others while it lives. Nested scopes count as one, and those of an exception on its way
// not at all.
class WaitScope {
 public:
  explicit WaitScope(const GroupInfo& group) : WaitScope(group.heartbeat.get(), group.peers) {}
  explicit WaitScope(const World& world) : WaitScope(heartbeat_of(world).get(), world.peers()) {}
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  WaitScope(Heartbeat* heartbeat, const std::vector<Peer>& peers);

  Heartbeat* heartbeat_;
};

// Adds to an error which rank is late and where it is. An error of a backend that knows no timeouts becomes a
// timeout if the group's time is over. Also notes the fault in Activity.
void complete_fault(const GroupInfo& group, CommError::Details& details);

}  // namespace fsdp::detail
