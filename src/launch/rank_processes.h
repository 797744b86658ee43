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

// The way a rank ended.
struct RankOutcome {
  int exit_code = 0;
  int signal = 0;          // the signal that ended it; 0: it exited
  std::string error;       // message of the exception that left `fn`
  bool secondary = false;  // that exception reports another rank's failure (CommError, RendezvousError)
  bool killed = false;     // ended by us, because another rank had failed

  bool failed() const { return exit_code != 0 || signal != 0; }
};

// Forks the ranks at construction; they die with this process. This process serves the store, so it survives
// any rank.
class RankProcesses {
 public:
  RankProcesses(int ranks, const std::function<void(World&)>& fn, const InitOptions& options);
  // Ends the ranks that still run.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int size() const { return static_cast<int>(children_.size()); }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
  void signal(int rank, int number) const;
  // True once the rank has ended; its outcome is known then.
  bool ended(int rank) const { return children_[static_cast<size_t>(rank)].ended; }
  const RankOutcome& outcome(int rank) const { return children_[static_cast<size_t>(rank)].outcome; }

  // Waits at most `time` for any rank to end. Returns the rank, or -1.
  int wait_any(Milliseconds time);
  // Waits for all. Once a rank has failed, the others get `grace` to end by themselves; a stopped rank
  // (SIGSTOP) cannot, and gets one second at most.
  void wait_all(Milliseconds grace);
  // The rank that made the run fail, or -1: the first that ended by an error of its own or a signal; if there
  // is none, the first that ended by an error about another rank. If that error begins with the number of a
  // rank that threw the same, as those of save() and load() do, that rank.
  int cause() const;
  // The way a failed rank ended, for the user: "rank 1 of 2 failed: no such file".
  std::string describe(int rank) const;

 private:
  struct Child {
    pid_t pid = -1;
    Fd pidfd;
    Fd words;  // the rank's last words: see Note [Last words]
    bool ended = false;
    bool told_to_end = false;
    RankOutcome outcome;
  };

  void start(int rank, int ranks, const std::function<void(World&)>& fn, const InitOptions& options,
             const Listener& listener);
  void reap(Child& child, int rank);
  void end(int rank);
  void end_all();

  int ranks_;
  std::vector<Child> children_;
  StorePtr store_;
  std::vector<int> failed_;  // in the order in which they ended
};

}  // namespace fsdp::detail
