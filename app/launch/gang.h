// The rank processes of a job on this machine: started, signalled and reaped together.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/console.h"
#include "app/launch/error_files.h"
#include "app/launch/fd.h"
#include "app/launch/guardian.h"
#include "app/launch/job.h"
#include "app/launch/outcome.h"
#include "app/launch/port.h"
#include "app/launch/rank_log.h"
#include "app/launch/rank_pipes.h"

namespace fsdp::launch {

// Indices are local ranks. The destructor kills the ranks that still run.
class Gang {
 public:
  // Finds the program and a port; starts no rank. The ranks get `signal_mask`. If Job::relayed, their output
  // goes to `console`. Throws LaunchError or IoError.
  Gang(const Job& job, const sigset_t& signal_mask, Console& console);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // Starts a rank; call it for each index, in order. Throws LaunchError or IoError. A rank that cannot
  // execute the program is found later, by check_started().
  void start(int index);

  int size() const { return static_cast<int>(members_.size()); }
  int running() const;
  bool ended(int index) const { return at(index).ended; }
  // Readable once the rank has ended.
  int pidfd(int index) const { return at(index).pidfd.get(); }
  // Readable once every rank executes the program, or one has failed to.
  int started_fd() const { return started_.get(); }
  // The rank's output, where Job::relayed says so; else !exist().
  RankPipes& pipes(int index) { return at(index).pipes; }
  // Throws LaunchError if a rank could not execute the program.
  void check_started() const;

  // SIGTERM, and SIGCONT so that a stopped rank gets it.
  void ask(int index);
  // SIGKILL to the rank and its process group; `why` is the kind of its end.
  void kill(int index, EndKind why);
  bool is_stopped(int index) const;
  // The rank has ended: reaps it, and kills what it left in its process group.
  RankEnd reap(int index);

 private:
  struct Member {
    pid_t pid = -1;
    Fd pidfd;
    RankLog log;
    RankPipes pipes;
    bool ended = false;
    bool asked = false;
    std::optional<EndKind> killed;
  };

  const Member& at(int index) const { return members_[static_cast<size_t>(index)]; }
  Member& at(int index) { return members_[static_cast<size_t>(index)]; }
  void open_output(Member& member, int rank);
  RankEnd describe_end(int index, bool known, int status) const;
  void kill_all();

  const Job& job_;
  std::optional<ReservedPort> port_;
  ErrorFiles errors_;
  Guardian guardian_;
  Environment own_;  // this process's
  std::string program_;
  int processors_;
  ProcessorsByNode nodes_;
  bool gpus_;
  const sigset_t& signal_mask_;
  Console& console_;
  Fd started_;
  Fd failures_;
  std::vector<Member> members_;
};

}  // namespace fsdp::launch
