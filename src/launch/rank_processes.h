// Ranks as processes of this machine, started and watched by this one.
#pragma once

#include <fsdp/world.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "launch/store.h"

namespace fsdp::detail {

// How a rank ended.
struct RankOutcome {
  int exit_code = 0;
  int signal = 0;     // that ended it; 0: it exited
  std::string error;  // what() of the exception that left `fn`

  bool failed() const { return exit_code != 0 || signal != 0; }
};

// Forks the ranks at construction; they die with this process. The store is served from here, so it survives
// any rank.
class RankProcesses {
 public:
  RankProcesses(int ranks, const std::function<void(World&)>& fn, const InitOptions& options);
  // Ends what still runs.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int size() const { return static_cast<int>(children_.size()); }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
  void signal(int rank, int number) const;
  // True once the rank has ended; its outcome is known then.
  bool ended(int rank) const { return children_[static_cast<size_t>(rank)].ended; }
  const RankOutcome& outcome(int rank) const { return children_[static_cast<size_t>(rank)].outcome; }

  // Waits at most `time` for some rank to end; the rank, or -1.
  int wait_any(Milliseconds time);
  // Waits for all. Once a rank has failed the others get `grace` to end by themselves.
  void wait_all(Milliseconds grace);
  // The first rank that failed, or -1.
  int first_failed() const { return first_failed_; }

 private:
  struct Child {
    pid_t pid = -1;
    Fd pidfd;
    Fd words;  // the rank's last: see Note [Last words]
    bool ended = false;
    RankOutcome outcome;
  };

  void start(int rank, int ranks, const std::function<void(World&)>& fn, const InitOptions& options,
             const Listener& listener);
  void reap(Child& child, int rank);
  void end_all();

  std::vector<Child> children_;
  StorePtr store_;
  int first_failed_ = -1;
};

}  // namespace fsdp::detail
